"""Every command block of the tutorial, of docs/own-task.md and of docs/troubleshooting.md, in order, by one reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Command, Reader, first_missing, steps_of
from tests.support.engine import REPOSITORY


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, micro_model: Path) -> Reader:
    """A reader that has followed the tutorial."""
    reader = Reader(tmp_path_factory.mktemp("reader"), micro_model, {"qwen2_5_05": "tiny"})
    reader.follow("tutorial.md")
    sums = (reader.folder / "sums.csv").read_text()
    (reader.folder / "problems.csv").write_text(sums)
    config = (reader.folder / "sums.yaml").read_text().replace("sums.csv", "problems.csv")
    (reader.folder / "config.yaml").write_text(config.replace("total_steps: 20", "total_steps: 1"))
    return reader


def test_the_tutorial_ends_with_a_model(reader: Reader) -> None:
    assert len([step for step in steps_of("tutorial.md") if isinstance(step, Command)]) >= 12
    assert (reader.folder / "sums-model" / "model.safetensors").is_file()
    assert str(reader.folder) not in (reader.folder / "sums-model" / "README.md").read_text()


@pytest.mark.parametrize("page", ["own-task.md", "troubleshooting.md"])
def test_other_pages_are_followed(reader: Reader, page: str) -> None:
    assert any(isinstance(step, Command) for step in steps_of(page))
    reader.follow(page)


def test_the_readme_lists_every_page() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in (REPOSITORY / "docs").glob("*.md"))
    assert [page for page in pages if f"(docs/{page})" not in readme] == []


def test_other_output_than_shown_is_found() -> None:
    assert first_missing(("rows 12", "…", "accuracy 0.5"), "rows 577\nnoise\naccuracy 0.61\n") is None
    assert first_missing(("accuracy 0.5", "rows 12"), "rows 577\naccuracy 0.61\n") == "rows 12"
    assert first_missing(("wrote x",), "wrote y\n") == "wrote x"
