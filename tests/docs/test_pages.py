"""Every console block of every page runs, in order, in a home with the runs, models and boxes that it names.

What is marked ``<!-- slow: REASON -->`` runs in tests/soak/test_edges_docs.py, ``<!-- not run: REASON -->`` nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir
from tests.docs.pages import NOT_RUN, PAGES, SLOW, blocks_of, first_missing, page_text
from tests.docs.worlds import World, world
from tests.support.agent import agents_here
from tests.support.engine import REPOSITORY

__all__ = ["agents_here"]

MARKED = {NOT_RUN: 12, SLOW: 5}
"""Number of marks. A new one is a decision: what it names is no longer run in each suite."""


@pytest.fixture(scope="module")
def made(
    golden: Callable[[str], RunDir], micro_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with world(golden, micro_model, tmp_path_factory.mktemp("docs")) as here:
        yield here


@pytest.mark.usefixtures("agents_here")
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.commands for block in blocks_of(page))])
def test_a_page_is_followed(made: World, page: str) -> None:
    with made.reader(page) as reader:
        wrong = reader.follow(page)
    assert not wrong, "\n\n".join(wrong)


def test_marks_have_a_reason_and_are_counted() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    marks = [block.mark for block in blocks if block.mark]
    assert {mark: marks.count(mark) for mark in {*marks, *MARKED}} == MARKED
    assert [block for block in blocks if block.mark and len(block.reason.split()) < 3] == []
    named = [file for block in blocks for file in re.findall(r"tests/[\w/]+\.py", block.reason)]
    assert [file for file in named if not (REPOSITORY / file).is_file()] == []


def test_commands_are_in_blocks_that_run() -> None:
    """A block of commands is of ``console``, with a prompt before each; a script has a mark."""
    wrong = []
    for block in (block for page in PAGES for block in blocks_of(page)):
        is_script = block.language in ("bash", "sh", "shell")
        has_commands = not block.language and re.search(r"^\W*(grpo-t|make |git |pip |uv )", block.text, re.MULTILINE)
        is_empty = block.language == "console" and not block.commands
        if has_commands or is_empty or (is_script and block.mark != NOT_RUN):
            wrong.append(f"{block.page}, line {block.number}")
    assert wrong == []
    fences = {page: page_text(page).count("```") for page in PAGES}
    assert fences == {page: 2 * len(list(blocks_of(page))) for page in PAGES}, "each block is seen"


def test_the_readme_lists_every_page() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if page.startswith("docs/") and f"({page})" not in readme] == []


def test_other_output_than_shown_is_found() -> None:
    assert first_missing(("rows 12", "…", "accuracy 0.5"), "rows 577\nnoise\naccuracy 0.61\n") is None
    assert first_missing(("accuracy 0.5", "rows 12"), "rows 577\naccuracy 0.61\n") == "rows 12"
    assert first_missing(("wrote x",), "wrote y\n") == "wrote x"
