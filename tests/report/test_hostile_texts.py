"""Texts of a run are inert on a page, whatever they hold."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from grpo_train.report.blocks import (
    Block,
    ChartBlock,
    ChartsBlock,
    CompletionBlock,
    FactsBlock,
    FoldedBlock,
    Name,
    NoteBlock,
    Page,
    Point,
    PointsBlock,
    SectionBlock,
    TableBlock,
)
from grpo_train.report.curves import reduce
from grpo_train.report.html import to_html
from grpo_train.report.markdown import to_markdown
from grpo_train.report.text import code, code_block, plain_markdown, script_json, visible
from grpo_train.report.train_log import Metric
from tests.report.test_report import Words

ATTACKS = (
    "<script>owned=1</script>", "</script><script>", "</pre></article>", '"><img src=x onerror=owned=1>', "<!--", "-->",
    "]]>", "&lt;script&gt;", "```", "~~~", "`", "``", "|", "\\", "\\|", "[a](javascript:owned=1)", "![a](http://x.y/z)",
    "https://x.y", "www.x.y", "a@b.cd", "<b>", "# ", "- ", "1. ", "> ", "***", "\n\n", "\r", "\t", "\x1b[31m", "\x00",
    "\u202e", "\u2028", "\ud800", "$$", "    ", "---", "|---|", "${owned}", "&amp;", "👩‍👩‍👧",
)  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(ATTACKS), st.text(max_size=8)), max_size=6).map("".join)
MARKDOWN = MarkdownIt("commonmark", {"linkify": False}).enable("table").enable("strikethrough")
HARMLESS = {
    "text", "softbreak", "code_inline", "inline", "paragraph_open", "paragraph_close", "heading_open", "heading_close",
    "fence", "strong_open", "strong_close", "table_open", "table_close", "thead_open", "thead_close", "tbody_open",
    "tbody_close", "tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close",
}  # fmt: skip


def tokens(text: str) -> list[Token]:
    """Every token of a Markdown document, inner ones too."""

    def flat(found: Iterable[Token]) -> Iterable[Token]:
        for token in found:
            yield token
            yield from flat(token.children or [])

    return list(flat(MARKDOWN.parse(text)))


def page_of(text: str) -> Page:
    """A page with a text in each place that takes one."""
    metric = Metric(text, np.array([1.0, 2.0]), np.array([0.5, np.nan]))
    chart = ChartBlock(text, [("", reduce(metric, 1, 2, 10, "raw"))], 1, 2)
    blocks: list[Block] = [
        NoteBlock(text),
        NoteBlock(text, "alarm"),
        FactsBlock([(text, text)]),
        TableBlock([text, "b"], [[text, Name(text)], [Name(text), text]], frozenset({1})),
        ChartsBlock([chart]),
        PointsBlock(text, [("", [Point(1, 0.5, 0.4, 0.6)])], 1, 2),
        SectionBlock(text, [CompletionBlock(text, text, text, text)]),
        FoldedBlock(text, [NoteBlock(text)]),
    ]
    return Page(text, text, blocks, text)


PLAIN = to_html(page_of("x"))


@settings(max_examples=150)
@given(texts)
def test_html_has_no_tag_from_a_text(text: str) -> None:
    found, plain = Words(to_html(page_of(text))), Words(PLAIN)
    skipped = 1 if not text.replace("\r\n", "\n") else 0  # an empty prompt has no element
    assert len(plain.tags) - len(found.tags) == skipped
    if not skipped:
        assert [(tag, sorted(given)) for tag, given in found.tags] == [(t, sorted(g)) for t, g in plain.tags]
    shown = visible(text)
    assert found.text.count(shown) >= plain.text.count("x\n") - skipped or not shown.strip()
    to_html(page_of(text)).encode()  # halves of surrogate pairs cannot be written


@settings(max_examples=150)
@given(texts)
def test_markdown_has_no_markup_from_a_text(text: str) -> None:
    document = to_markdown(page_of(text))
    found = tokens(document)
    assert {token.type for token in found} <= HARMLESS
    rows = [token.type for token in found].count("tr_open")
    assert rows == [token.type for token in tokens(to_markdown(page_of("x")))].count("tr_open")


@settings(max_examples=200)
@given(texts)
def test_markdown_shows_the_text_itself(text: str) -> None:
    line = " ".join(visible(text).split())
    said = tokens(plain_markdown(text))
    assert "".join(token.content for token in said if token.type == "text") == line
    if line:
        cells = [token for token in tokens(f"|a|\n|---|\n| {code(text)} |") if token.type == "code_inline"]
        assert [token.content for token in cells] == [line]
    (block,) = tokens(code_block(text))
    assert block.content == visible(text) + "\n" or "\r" in text


@given(texts)
def test_script_data_cannot_end_its_element(text: str) -> None:
    data = script_json({"name": text})
    assert not set("<>&") & set(data)
    assert json.loads(data) == {"name": text}


def test_controls_and_directions_are_shown_as_codes() -> None:
    assert visible("a\x1b[1m\x00b\u202ec\ud800") == "a\\x1b[1m\\x00b\\u202ec\\ud800"
    assert visible("two\nlines\tand 👩‍👩‍👧") == "two\nlines\tand 👩‍👩‍👧"
