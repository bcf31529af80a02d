"""The language of the filters."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.history.query import (
    EVERYTHING,
    KEYWORDS,
    OPERATORS,
    And,
    FieldCondition,
    Leaf,
    Node,
    Not,
    Or,
    QueryError,
    Word,
    all_of,
    any_of,
    leaves,
    matches,
    meets,
    parse_filter,
    render,
)

A, B, C = Word("a"), Word("b"), Word("c")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", EVERYTHING),
        ("  ", EVERYTHING),
        ("a", A),
        ("a b", And((A, B))),
        ("a AND b", And((A, B))),
        ("a b or c", Or((And((A, B)), C))),
        ("a (b or c)", And((A, Or((B, C))))),
        ("not a b", And((Not(A), B))),
        ("not not (a b)", Not(Not(And((A, B))))),
        ('"or" "a b"', And((Word("or", True), Word("a b", True)))),
        ("reward<1", FieldCondition("reward", "<", "1")),
        ("reward == 1", FieldCondition("reward", "=", "1")),
        ("ess/token >= -1e-6 x", And((FieldCondition("ess/token", ">=", "-1e-6"), Word("x")))),
        (r'text~"\d+ \"x\""', FieldCondition("text", "~", r'\d+ "x"', True)),
        ("text~<b>|x!=1", FieldCondition("text", "~", "<b>|x!=1")),
        ("state:a,b", Or((FieldCondition("state", ":", "a"), FieldCondition("state", ":", "b")))),
        ('"own field"=or', FieldCondition("own field", "=", "or")),
    ],
)
def test_a_filter_is_read(text: str, tree: Node) -> None:
    assert parse_filter(text) == tree
    assert parse_filter(render(tree)) == tree


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("a or", 4, "a condition is missing after 'or'"),
        ("a and or b", 6, "a condition is missing before 'or'"),
        ("(a", 0, "this parenthesis is not closed"),
        ("a b)", 3, "this parenthesis was not opened"),
        ("a ()", 3, "the parentheses are empty"),
        ("reward<", 7, "a value is missing after '<'"),
        ("<1", 0, "a field is missing before '<'"),
        ('a "b', 2, "this quote is not closed"),
        ("text~(a)", 5, "a value with a parenthesis needs quotes"),
        ('text~"a{99999999999}"', 6, "invalid pattern: the repetition number is too large"),
        ('text~"a(b"', 7, "invalid pattern: missing ), unterminated subpattern"),
        ("state:a,", 8, "a value is missing after ','"),
        ("(" * 99, 16, "too many nested parentheses"),
        ("x" * 3_000, 2_000, "a filter has at most 2,000 characters"),
    ],
)
def test_a_mistake_has_its_column(text: str, column: int, message: str) -> None:
    with pytest.raises(QueryError) as raised:
        parse_filter(text)
    assert (raised.value.column, raised.value.message) == (column, message)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
SNIPPETS = st.sampled_from([*OPERATORS, *KEYWORDS, "(", ")", '"', "\\", " ", ",", "a", "reward", "1", "[", "*", "!"])


@given(st.one_of(TEXTS, st.lists(SNIPPETS, max_size=12).map("".join), st.lists(SNIPPETS, max_size=12).map(" ".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    mistake = None
    try:
        tree = parse_filter(text)
    except QueryError as error:
        mistake = error
    if mistake is not None:
        assert mistake.message
        assert 0 <= mistake.column <= len(text)
    else:
        assert parse_filter(render(tree)) == tree
        assert all(text[leaf.column] in (_name(leaf) or '"')[0] + '"' for leaf in leaves(tree))


def _name(leaf: Leaf) -> str:
    return leaf.text if isinstance(leaf, Word) else leaf.field


def _is_plain(text: str) -> bool:
    return re.fullmatch(r'[^\s()"=<>~:!,]+', text) is not None and text.lower() not in KEYWORDS


PLAIN = TEXTS.filter(_is_plain)
OTHERS = st.sampled_from([operator for operator in OPERATORS if operator != "~"])
LEAVES: st.SearchStrategy[Node] = st.one_of(
    st.builds(Word, PLAIN),
    st.builds(Word, TEXTS, st.just(True)),
    st.builds(FieldCondition, TEXTS.filter(bool), OTHERS, PLAIN),
    st.builds(FieldCondition, TEXTS.filter(bool), OTHERS, TEXTS, st.just(True)),
    st.builds(FieldCondition, PLAIN, st.just("~"), TEXTS.map(re.escape), st.just(True)),
)
TREES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        parts.map(Not),
        st.lists(parts, min_size=1, max_size=3).map(all_of),
        st.lists(parts, min_size=1, max_size=3).map(any_of),
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(TREES)
def test_a_tree_comes_back_from_its_text(tree: Node) -> None:
    assert parse_filter(render(tree)) == tree


@given(TREES, st.integers(0, 2**32))
def test_not_is_the_opposite(tree: Node, bits: int) -> None:
    truths = {leaf: bool(bits >> place & 1) for place, leaf in enumerate(leaves(tree))}
    assert matches(Not(tree), truths.__getitem__) is not matches(tree, truths.__getitem__)


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("x<1", 0.5, True),
        ("x<=1", 1.0, True),
        ("x>1", math.nan, False),
        ("x!=1", math.nan, True),
        ("x=1", "1.0", True),
        ('x="1"', "1.0", False),
        ("x>=2026-11-20", "2026-11-21T10:00", True),
        ("x=yes", True, True),
        ("x!=true", True, False),
        ("x:RUN", "running", True),
        ("x~^run", "running", True),
        ("x~RUN", "running", False),
        ("x:run,lost", "lost", True),
        ("x=abc", 1.0, False),
        ("x~5$", 0.5, True),
        ("x=1", None, False),
        ("x!=1", None, False),
    ],
)
def test_values_are_compared(text: str, found: str | float | bool | None, expected: bool) -> None:
    def leaf(one: Leaf) -> bool:
        assert isinstance(one, FieldCondition)
        return meets(one, found)

    assert matches(parse_filter(text), leaf) is expected


@given(st.sampled_from(OPERATORS), st.one_of(st.floats(), st.booleans(), TEXTS, st.none()), PLAIN)
def test_any_values_can_be_compared(operator: str, found: str | float | bool | None, value: str) -> None:
    assert meets(FieldCondition("x", operator, re.escape(value) if operator == "~" else value), found) in (True, False)
