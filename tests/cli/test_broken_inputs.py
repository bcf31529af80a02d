"""Every command with broken files: a sentence and an exit code, never a traceback. All pairs are in soak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.cli import PLACES
from grpo_train.run_dir import RunDir
from grpo_tui.cli import COMMANDS as APP_COMMANDS
from tests.support.broken_inputs import COMMANDS, READ_NOTHING, failures, inputs, new_world, some_pairs

PARTS = 4
"""Tests that share the pairs: a command takes seconds, and a minute on a machine with twenty times its load."""


def test_every_command_is_fed_or_has_a_reason() -> None:
    known = {f"grpo-train {name}" for name in PLACES} | {f"grpo-tui {name}" for name in APP_COMMANDS} | {"grpo-tui"}
    fed = {command.name for command in COMMANDS}
    assert sorted(fed | READ_NOTHING.keys()) == sorted(known)
    assert not fed & READ_NOTHING.keys()


def test_the_corpus_is_the_same_every_time() -> None:
    assert len(set(inputs())) == len(inputs()) > 200
    assert some_pairs(60) == some_pairs(60)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_traceback(part: int, golden: Callable[[str], RunDir], tmp_path: Path) -> None:
    with new_world(tmp_path, golden) as world:
        assert failures(world, some_pairs(60)[part::PARTS]) == []
