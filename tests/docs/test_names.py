"""What the pages name exists: files, links and anchors, commands and their options, config keys, variables, targets."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, prose
from tests.support.engine import REPOSITORY

MADE = {
    "backup.yaml", "boxes.yaml", "config.yaml", "columns.yaml", "alarms.yaml", "keymap.yaml", "eval_config.yaml",
    "my_rewards.py", "file.py", "NAME.py", "NAME_backend.py", "sums.yaml", "load.py", "make_problems.py",
}  # fmt: skip
"""Files of users and of runs."""


@cache
def tracked() -> frozenset[str]:
    """Files and folders of this repository, as paths below it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return frozenset(name for file in listed for name in (file, *map(str, Path(file).parents)))


def spans(page: str) -> Iterator[str]:
    """The texts in backticks outside of blocks."""
    yield from (" ".join(found.split()) for found in re.findall(r"`([^`]+)`", prose(page)))


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    """Also as the end of a path, as ``train/loop.py``, and beside the file named before it, as ``token_metrics.py``."""
    named = [word for span in spans(page) for word in re.findall(r"[\w./*-]+(?:\.(?:py|md|ya?ml|sh|svg|yml)|/)(?![\w/*-])", span)]
    gone = [name for name in named if Path(name).name not in MADE and not exists(name)]
    assert gone == []


def exists(name: str) -> bool:
    pattern = re.compile(r"(?:.*/)?" + re.escape(name.strip("/").removeprefix("./")).replace(r"\*", "[^/]*"))
    return any(pattern.fullmatch(path) for path in tracked())
