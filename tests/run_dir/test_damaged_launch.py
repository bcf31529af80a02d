"""A launch.json that decides with what a run starts is read strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.safe_json import Unreadable
from tests.support.engine import command_here


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, {"config_text": "run: {}\n", "overrides": []}, "one")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ckpt": ["a"]}, "'ckpt' must be a text"),
        ({"config_text": 7}, "'config_text' must be a text"),
        ({"nproc": "two"}, "'nproc' must be an integer"),
        ({"overrides": {"a": 1}}, "'overrides' must be an array of texts"),
        ({"overrides": [1]}, "'overrides' must be an array of texts"),
        ({"config_text": None}, "has no config_text"),
    ],
)
def test_a_wrong_value_starts_nothing(run: RunDir, changes: dict[str, Any], reason: str) -> None:
    run.launch_file.write_text(json.dumps({**run.read_launch(), **changes}))
    done = command_here("supervise", "one", root=run.root)
    assert (
        done.returncode,
        f"error: one: launch.json{'' if 'no config' in reason else ':'} {reason}" in done.stderr,
    ) == (2, True)
    assert (run.read_status() or {})["state"] == "crashed"


def test_damage_is_not_the_absence_of_starting_weights(run: RunDir) -> None:
    run.launch_file.write_text('{"ckpt": "models/mine", ')
    assert run.read_launch() == {}
    with pytest.raises(Unreadable, match=r"one: launch\.json: invalid JSON"):
        run.launched()
    run.launch_file.unlink()
    assert run.launched() == {}
