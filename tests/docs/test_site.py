"""What ``make docs`` generates: tables, the command reference, pages whose links stay right; and its link check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpo_train.cli import COMMANDS, HIDDEN
from grpo_train.config.importing import LIBRARIES
from scripts.docs import LINK, MARK, NAVIGATION, broken_links, commands, page_name, tables, write_config, write_pages
from tests.docs.pages import PAGES, page_text
from tests.docs.test_names import programs


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    write_pages(folder)
    return folder


@pytest.mark.parametrize("library", LIBRARIES)
def test_tables_are_those_of_the_translation(library: str) -> None:
    """``make schema`` writes them."""
    text = page_text(f"docs/from-{library}.md")
    assert text[text.index(MARK) :] == tables(LIBRARIES[library])
    assert f"{LIBRARIES[library].label}" in text.partition(MARK)[0]


def test_the_reference_has_every_command_and_option() -> None:
    text = commands()
    sections = {part.partition("\n")[0]: part for part in re.split(r"^#{2,4} ", text, flags=re.MULTILINE)}
    shown = {name for heading, names in COMMANDS.items() for name in names if heading != HIDDEN}
    expected = [("grpo-train", name) for name in shown] + [("grpo-tui", name) for name in programs()["grpo-tui"]]
    missing = []
    for program, name in expected:
        own = "".join(part for title, part in sections.items() if f"{title} ".startswith(f"{program} {name}".strip()))
        options = {option for option in programs()[program][name] if option.startswith("--")} - {"--help"}
        missing += [f"{program} {name} {option}" for option in options if f"`{option}" not in own]
    assert missing == []


def test_every_page_is_in_the_site_and_its_navigation(pages: Path) -> None:
    stems = {Path(page).stem for page in PAGES}
    assert {page.name for page in pages.glob("*.md")} >= {page_name(stem) for stem in stems}
    named = [name for names in NAVIGATION.values() for name in names]
    assert sorted(stems | {"commands", "CHANGELOG"}) == sorted(named)
    config = write_config(pages, pages.parent / "site").read_text()
    assert all(f'"{page_name(name)}"' in config for name in named)


def test_links_of_the_pages_stay_in_the_site(pages: Path) -> None:
    """Of README and docs/ alike, also those to sources."""
    wrong = []
    for page in pages.glob("*.md"):
        for _, _, target in LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)):
            file = pages / target.partition("#")[0]
            if not re.match(r"\w+:|#", target) and not (file.is_file() and file.resolve().is_relative_to(pages)):
                wrong.append(f"{page.name}: {target}")
    assert wrong == []
    assert (pages / "source" / "config" / "testconfig.yaml.txt").is_file()


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="#top"><a href="b.html#there"><a href="https://x.org"><a href="b.html#no">'
        '<a href="#gone"><img src="missing.svg"><a href="/b.html">'
    )
    (tmp_path / "b.html").write_text('<a id="there" href="a.html?q=1">')
    assert broken_links(tmp_path) == ["a.html: b.html#no", "a.html: #gone", "a.html: missing.svg"]
