"""Which completions keep their tokens, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.rewards.types import Problem, Verdict
from grpo_train.rollout.collect import Sample
from grpo_train.run_dir.tokens import decode_tokens
from grpo_train.train import token_rows
from grpo_train.train.token_rows import TokenRow, choose_slots, token_lines
from tests.support.engine import config_text, rows, train_here, write_config, write_micro


def config_of(**changes: object) -> Config:
    return load_config(config_text(rollout__buffer_size=8, train__microbatch_size=1, **changes))


def samples_of(length: int = 20, groups: int = 8) -> list[Sample]:
    problem, verdict = (
        Problem(0, "what is it?", "1", "it"),
        Verdict(True, True, "ok", "1"),
    )
    return [
        Sample(k // 4, k % 4, problem, "aaaa" * length, 5, length, False, verdict, {"accuracy": 1.0})
        for k in range(4 * groups)
    ]


def rewards_of(*counts: int) -> torch.Tensor:
    """For each group, how many of its four samples have reward 1."""
    return torch.tensor([[float(k < count) for k in range(4)] for count in counts]).flatten().double()


def test_the_groups_with_the_largest_spread_are_kept() -> None:
    rewards = rewards_of(0, 1, 2, 3, 4, 2, 1, 0)
    assert choose_slots(samples_of(), rewards, config_of()) == [*range(8, 12), *range(20, 24)]
    two = config_of(algorithm__updates_per_buffer=2)
    assert {slot // 4 for slot in choose_slots(samples_of(), rewards, two)} == {1, 2, 5, 6}
    assert choose_slots(samples_of(), rewards, config_of(tracking__token_rows=5)) == [8, 9, 10, 11, 20]
    assert choose_slots(samples_of(), rewards, config_of(tracking__token_rows=0)) == []
    assert len(choose_slots(samples_of(), rewards, config_of(tracking__token_rows=100))) == 32
    rewards[8:12] = torch.nan
    assert 2 not in {slot // 4 for slot in choose_slots(samples_of(), rewards, config_of())}


def test_a_default_of_few_groups_is_cut() -> None:
    """Two of two groups would take more than a quarter."""
    config = config_of()
    few = samples_of(100, groups=2)
    kept = choose_slots(few, rewards_of(2, 2), config)
    assert 0 < len(kept) < 8
    assert len(kept) * 16 / 3 * 100 < sum(token_rows.ROW + 400 for _ in few) / 4
    assert len(choose_slots(few, rewards_of(2, 2), config_of(tracking__token_rows=8))) == 8


def test_a_long_group_has_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_rows, "LINE", 10)
    written = [TokenRow(group, sample, "x" * 8) for group in (3, 1) for sample in (2, 0, 1)]
    found = list(token_lines(7, 5, written))
    assert [(line["group"], list(line["tokens"])) for line in found] == [
        (1, ["0", "1"]), (1, ["2"]), (3, ["0", "1"]), (3, ["2"]),
    ]  # fmt: skip
    assert all((line["step"], line["of"]) == (7, 5) for line in found)


def test_what_tokens_cost(make_root: Callable[[], Path]) -> None:
    """With the default of a real run: a quarter of the rollouts at most, and 8 bytes a token, besides the line's names;
    0 writes nothing."""
    root = make_root()
    config = write_config(root, rollout__buffer_size=8, rollout__num_generations=8, run__total_steps=2)
    run = train_here(root, config, "default")
    size, logged = ((run.logs / f"{name}.jsonl").stat().st_size for name in ("tokens", "rollouts"))
    kept = [decode_tokens(text) for line in rows(run, "tokens.jsonl") for text in line["tokens"].values()]
    assert len(kept) == 2 * 2 * 8
    assert size <= 8 * sum(map(len, kept)) + 100 * len(rows(run, "tokens.jsonl"))
    assert size <= logged / 4
    none = train_here(root, write_config(root, tracking__token_rows=0, run__total_steps=1), "none")
    assert not (none.logs / "tokens.jsonl").exists()


def test_tokens_of_self_play(make_micro_root: Callable[[], Path]) -> None:
    root = make_micro_root()
    changes = {"task__name": "kuhn_poker", "rollout__max_prompt_length": 512, "tracking__token_rows": 6}
    run = train_here(root, write_micro(root, run__total_steps=1, **changes), "play")
    texts = {(row["group"], row["sample"]): row for row in rows(run, "rollouts.jsonl")}
    kept = [(texts[line["group"], int(sample)], decode_tokens(text)) for line in rows(run, "tokens.jsonl")
            for sample, text in line["tokens"].items()]  # fmt: skip
    assert len(kept) == min(6, len(texts))
    for row, tokens in kept:
        assert "".join(row["completion"][one.start : one.end] for one in tokens) == row["completion"]
        assert row["role"]
        json.dumps(row)
