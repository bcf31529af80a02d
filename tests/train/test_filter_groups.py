"""``rollout.filter_groups``: groups without spread are replaced by further prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import load_config
from grpo_train.rewards.types import TaskError
from grpo_train.run_dir import RunDir
from grpo_train.supervisor.resume import prepare_resume
from grpo_train.tasks import data_order, load_task
from grpo_train.tasks.shared.self_play import SelfPlayTask, check_self_play
from grpo_train.train.filling import choose_candidates, round_size
from grpo_train.train.worker import main
from tests.support.engine import assert_same_run, config_text, rows, run_of, train_here, without_time, write_config
from tests.support.two_processes import run_in_two

FILTER: dict[str, Any] = {"rollout__filter_groups": True, "rollout__max_rounds": 20}


@given(st.lists(st.booleans(), min_size=4), st.integers(1, 4))
def test_a_buffer_is_the_first_groups_with_spread(has_spread: list[bool], size: int) -> None:
    choice = choose_candidates(has_spread, size)
    found = [k for k, spread in enumerate(has_spread) if spread]
    assert len(choice.chosen) == size
    assert choice.chosen == sorted(set(choice.chosen))
    assert [k for k in choice.chosen if has_spread[k]] == found[:size]
    assert choice.unfilled == max(0, size - len(found))
    assert choice.used == (len(has_spread) if choice.unfilled else choice.chosen[-1] + 1)


def test_a_round_draws_what_the_rate_so_far_needs() -> None:
    assert round_size(32, 0, 0) == 32
    assert round_size(32, 0, 64) == 32
    assert round_size(32, 16, 32) == 32
    assert round_size(32, 24, 32) == 11
    assert round_size(32, 31, 32) == 2
    assert round_size(32, 1, 32) == 32


def test_kept_groups_have_a_spread(make_root: Callable[[], Path]) -> None:
    root = make_root()
    run = train_here(root, write_config(root, run__total_steps=3, **FILTER), "kept")
    logged, samples = rows(run), rows(run, "rollouts.jsonl")
    position = 0
    for row in logged:
        of_step = [sample for sample in samples if sample["step"] == row["step"]]
        kept = [sample for sample in of_step if "discarded" not in sample]
        left = [sample for sample in of_step if "discarded" in sample]
        assert row["frac_reward_zero_std"] == row["filter/unfilled"] == 0
        assert len(kept) == 16
        assert row["filter/groups"] * 4 == len(of_step)
        assert row["filter/discarded_groups"] * 4 == len(left)
        assert row["filter/discarded_tokens"] == sum(sample["length"] for sample in left)
        assert ("time/discarded" in row) == bool(left)
        assert all(sample["advantage"] == 0 for sample in left)
        flat = {sample["index"] for sample in left if sample["discarded"] == "no_spread"}
        used = len({sample["index"] for sample in kept} | flat)
        assert {s["index"] for s in kept} | flat == {data_order(7076, 3, position + k) for k in range(used)}
        position += used
    assert any("discarded" in sample for sample in samples)
    lengths = {}
    for sample in samples:
        lengths[sample["step"]] = lengths.get(sample["step"], 0) + sample["length"]
    assert logged[-1]["num_tokens"] > sum(lengths.values()), "discarded tokens count, and so do prompts"
    assert logged[-1]["epoch"] == pytest.approx(position / 7076)


def test_filtered_runs_resume_bit_for_bit(make_root: Callable[[], Path]) -> None:
    """Within a buffer, and between two."""
    torch.set_num_threads(1)
    root = make_root()
    cfg = write_config(root, run__total_steps=4, algorithm__num_iterations=2, **FILTER)
    whole = train_here(root, cfg, "whole")
    parts = train_here(root, cfg, "parts", "--until", "1")
    for until in (2, 4):
        prepare_resume(parts, "latest", 4)
        assert main(["--run-dir", str(parts.path), "--until", str(until)]) == 0
    assert_same_run(parts, whole, 4)
    assert any("discarded" in row for row in rows(whole, "rollouts.jsonl"))


def test_a_full_last_round_ends_the_drawing(make_root: Callable[[], Path]) -> None:
    """No reward has a spread: the buffer is filled in the order of the prompts, and the next one draws new prompts."""
    root = make_root()
    changes = {**FILTER, "rollout__max_rounds": 2, "task__correct_reward": 0.0}
    run = train_here(root, write_config(root, run__total_steps=2, **changes), "flat")
    for step, row in enumerate(rows(run)):
        assert (row["filter/rounds"], row["filter/groups"], row["filter/unfilled"]) == (2, 8, 4)
        assert row["grad_norm"] == 0
        samples = [sample for sample in rows(run, "rollouts.jsonl") if sample["step"] == row["step"]]
        assert [sample["index"] for sample in samples[::4]] == [data_order(7076, 3, 8 * step + k) for k in range(8)]
        assert [sample.get("discarded") for sample in samples] == [None] * 16 + ["no_spread"] * 16


def _train(root: str, cfg: str) -> int:
    return main(["--cfg", cfg, "--root", root, "--run-name", "two"])


def test_two_processes_keep_the_groups_of_one(make_root: Callable[[], Path]) -> None:
    """A learning rate near zero, so that rounding in the sum of gradients cannot change what is drawn."""
    root = make_root()
    changes = {**FILTER, "optimizer__learning_rate": 1e-12, "model__device": "cpu"}
    cfg = write_config(root, run__total_steps=3, **changes)
    one = train_here(root, cfg, "one")
    assert run_in_two(_train, str(root), str(cfg)) == [0, 0]
    assert _drawn(one) == _drawn(run_of(root, "two"))
    for left, right in zip(rows(one), rows(run_of(root, "two")), strict=True):
        assert {k: v for k, v in left.items() if k.startswith(("filter/", "reward"))} == {
            k: v for k, v in right.items() if k.startswith(("filter/", "reward"))
        }
        assert left["loss"] == pytest.approx(right["loss"], abs=1e-6)
        assert (left["epoch"], left["num_tokens"]) == (right["epoch"], right["num_tokens"])


def _drawn(run: RunDir) -> list[str]:
    return [without_time(row) for row in rows(run, "rollouts.jsonl")]


def test_self_play_refuses_a_filter() -> None:
    changes = {"task__name": "tictactoe", "rollout__filter_groups": True, "rollout__num_generations": 9}
    config = load_config(config_text(**changes))
    game = load_task(config.task)
    assert isinstance(game, SelfPlayTask)
    with pytest.raises(TaskError, match=r"rollout\.filter_groups: in self-play a group is a game"):
        check_self_play(game, config)
