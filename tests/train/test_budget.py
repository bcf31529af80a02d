"""``train.token_budget: auto``: what is measured in the first step, and what a checkpoint keeps of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig

from grpo_train.config import ConfigError, load_config
from grpo_train.platforms.memory import QWEN2_5, activation_bytes, activation_bytes_per_token
from grpo_train.policy import loading, memory
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.policy.memory import RowLimit
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.train import budget as budgets
from grpo_train.train.budget import SMALLEST, TokenBudget, TokenCost, budget_of
from grpo_train.train.distributed import World
from tests.rollout.native.models import TOKENIZER
from tests.rollout.native.recorder import Recorder
from tests.support.engine import assert_same_run, config_text, resume_here, rows, run_of, train_here, write_micro

GIB = 2**30
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Policy:
    """What the budget looks at, on a GPU that is not there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device


class Peak:
    """Allocated above what was in use, in the order of the calls."""

    def __init__(self, *above: int) -> None:
        self.values, self.resets = list(above), 0

    def reset(self) -> None:
        self.resets += 1

    def above(self) -> int | None:
        return self.values.pop(0)


def test_the_budget_fills_free_memory() -> None:
    assert budget_of(TokenCost(2**20, 40 * GIB), CUDA) == int(0.8 * 40 * 1024)
    assert budget_of(TokenCost(2**20, 40 * GIB), CPU) == int(0.4 * 40 * 1024)
    assert budget_of(TokenCost(2**20, GIB), CUDA) == SMALLEST, "a pass that does not fit is repeated with fewer rows"


def test_bytes_are_measured_on_the_largest_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(config_text(rollout__max_completion_length=32_768))
    budget = TokenBudget(config, Policy(CUDA), World())  # type: ignore[arg-type]
    budget._peak = peak = Peak(8 * GIB)  # type: ignore[assignment]
    monkeypatch.setattr(budgets, "free_bytes", lambda device: 40 * GIB)
    assert (budget.tokens, budget.is_settled) == (SMALLEST, False)
    budget.start()
    budget.stop(0)
    assert budget.settle([budget.own()]) == "", "nothing was computed: the next step measures"
    budget.start()
    budget.stop(8192)
    assert budget.own() == TokenCost(2**20, 40 * GIB)
    slower = TokenCost(2**20, 20 * GIB)
    expected = "train.token_budget: passes take up to 16,384 tokens (1.00 MiB each, 20.0 GiB free)"
    assert budget.settle([budget.own(), None, slower]) == expected
    assert (budget.tokens, budget.is_settled, budget.own()) == (16_384, True, None)
    assert budget.settle([slower]) == ""
    budget.start()
    budget.stop(8192)
    assert peak.resets == 2, "measured once"


def test_repeated_kernels_take_a_budget_that_repeats() -> None:
    config = load_config(config_text(run__deterministic=True, rollout__max_completion_length=32_768))
    budget = TokenBudget(config, Policy(CUDA), World())  # type: ignore[arg-type]
    assert (budget.tokens, budget.is_settled) == (SMALLEST, True)


def test_short_micro_batches_need_no_measurement() -> None:
    budget = TokenBudget(load_config(config_text()), Policy(CUDA), World())  # type: ignore[arg-type]
    assert (budget.tokens, budget.is_settled, budget.is_measured) == (2 * 4 * 104, True, False)


def test_enough_memory_takes_whole_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(config_text(rollout__max_completion_length=32_768))
    for free in (10**15, 10**16):
        budget = TokenBudget(config, Policy(CUDA), World())  # type: ignore[arg-type]
        assert budget.settle([TokenCost(2**20, free)]) == ""
        assert (budget.tokens, budget.is_measured) == (2 * 4 * (64 + 32_768), True), "the same in every checkpoint"


def test_the_estimate_is_that_of_a_prompt() -> None:
    config = load_config(config_text())
    shape = QWEN2_5["qwen2_5_15"]
    per_token = activation_bytes_per_token(shape, config, "bfloat16")
    assert activation_bytes(shape, config, "bfloat16") == 4 * 104 * per_token


def test_a_budget_below_the_longest_completion_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        load_config(config_text(train__token_budget=103))
    message = "train.token_budget 103 is below rollout.max_prompt_length 64 + rollout.max_completion_length 40"
    assert f"{message}; set auto, or at least 104" in str(error.value)
    assert load_config(config_text(train__token_budget=104)).token_budget == 104
    assert load_config(config_text()).token_budget == 0


def test_a_measured_budget_is_part_of_the_checkpoint(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Resumed with more free memory, a run takes the passes that it began with; a new run takes others."""
    torch.set_num_threads(1)
    original, passes = LogprobForward.__call__, []

    def forward(self: LogprobForward, completions: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            passes.append(len(completions))
        return original(self, completions, **options)

    monkeypatch.setattr(LogprobForward, "__call__", forward)
    monkeypatch.setattr(budgets, "SMALLEST", 1)
    monkeypatch.setattr(budgets, "_estimate", lambda config, policy: 100.0)
    monkeypatch.setattr(budgets, "free_bytes", lambda device: 100 * 80 / 0.4)
    cfg = write_micro(root, train__skip_zero_advantages=False, run__total_steps=4)
    run = train_here(root, cfg, "small")
    assert "train.token_budget: passes take up to 80 tokens" in capfd.readouterr().out
    assert passes[:16] == [1] * 16, "the first step takes the smallest passes"
    assert 2 <= max(passes[16:]) < 8
    straight = list(passes)
    shutil.copytree(root, tmp_path / "copy", symlinks=True)
    monkeypatch.setattr(budgets, "free_bytes", lambda device: 10**12)
    again = run_of(tmp_path / "copy", "small")
    passes.clear()
    resume_here(again, "1", total=4)
    assert passes == straight[16:]
    assert_same_run(run, again, 4)
    passes.clear()
    ample = train_here(root, cfg, "ample")
    assert passes[16:] == [8] * 6
    assert rows(ample)[3]["grad_norm"] == pytest.approx(rows(run)[3]["grad_norm"], rel=1e-3)


class Kept:
    """What rollouts keep on a GPU of 40 GiB."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size, self.is_for_good = size, False
        monkeypatch.setattr(memory, "KEEPERS", [self])
        monkeypatch.setattr(memory, "_unused_bytes", lambda device: 40 * GIB - self.size)

    def kept_bytes(self, device: torch.device) -> int:
        return self.size

    def release(self, *, for_good: bool) -> bool:
        was, self.size, self.is_for_good = self.size, 0, for_good
        return was > 0


@pytest.mark.parametrize("size", [0, 7, 30])
def test_what_rollouts_keep_does_not_shrink_the_budget(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(config_text(rollout__max_completion_length=32_768))
    budget = TokenBudget(config, Policy(CUDA), World())  # type: ignore[arg-type]
    budget._bytes_per_token = 2**20
    kept = Kept(size * GIB, monkeypatch)
    assert budget.own() == TokenCost(2**20, 40 * GIB)
    assert budget.make_room(has_moments=True) == ""
    assert kept.size == 0, "the first step, which measures, has all memory"
    budget.settle([budget.own()])
    assert budget.tokens == int(0.8 * 40 * 1024)


@pytest.mark.parametrize("size", [3, 30])
def test_rollouts_keep_what_a_pass_leaves(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes 32 GiB of 40."""
    config = load_config(config_text(rollout__max_completion_length=32_768))
    budget = TokenBudget(config, Policy(CUDA), World())  # type: ignore[arg-type]
    budget._bytes_per_token = 2**20
    budget.settle([TokenCost(2**20, 40 * GIB)])
    kept = Kept(size * GIB, monkeypatch)
    said = []
    for _ in range(3):
        kept.size = size * GIB
        said.append(budget.make_room(has_moments=True))
        assert kept.size == (3 * GIB if size == 3 else 0)
    sentence = (
        "a pass of 32,768 tokens does not fit beside the slots of rollouts (30.0 GiB): each rollout makes slots and "
        "CUDA graphs anew, which is slower"
    )
    assert said == ["" if size == 3 else sentence, "", ""]
    kept.size = 3 * GIB
    assert (budget.make_room(has_moments=False), kept.size) == ("", 0), "the optimizer allocates its moments"


def test_rollouts_give_back_before_passes_shrink(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, limit, tried = Kept(3, monkeypatch), RowLimit(8, "train.microbatch_size"), []

    def work(rows: int) -> int:
        tried.append(rows)
        if kept.size or rows > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows

    assert (limit.run(work), tried, kept.is_for_good) == (4, [8, 8, 4], True)
    assert capsys.readouterr().out.splitlines() == [
        "out of memory: train.microbatch_size stays, without what rollouts kept",
        "out of memory: train.microbatch_size is too large; passes take 4 completions now",
    ]


def test_recordings_stay_between_steps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on; the first gives back what it recorded."""
    torch.set_num_threads(1)
    recorder, made, counts = Recorder(), NativeBackend.__init__, []

    def make(self: NativeBackend, *settings: Any, **options: Any) -> None:
        made(self, *settings, **options)
        self._record_with(recorder)

    original = TokenBudget.make_room

    def make_room(self: TokenBudget, *, has_moments: bool) -> str:
        before = memory.kept_bytes(CPU) > 0
        said = original(self, has_moments=has_moments)
        counts.append((before, memory.kept_bytes(CPU) > 0, recorder.shapes))
        recorder.shapes = 0
        return said

    monkeypatch.setattr(NativeBackend, "__init__", make)
    monkeypatch.setattr(TokenBudget, "make_room", make_room)
    memory.release_kept()
    cfg = write_micro(root, run__total_steps=4)
    train_here(root, cfg, "kept")
    assert [kept for _, kept, _ in counts] == [False, True, True, True]
    assert all(before for before, _, _ in counts)
    assert [shapes > 0 for *_, shapes in counts] == [True, True, False, False]


def test_a_shape_that_is_not_known_has_no_estimate() -> None:
    """A Mamba has no heads."""
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1))
    policy = loading.Policy(model, TOKENIZER, CPU, "mamba")
    assert budgets._estimate(load_config(config_text()), policy) is None
