"""Compiled transformer blocks: the gradient of plain ones, a decision that a checkpoint keeps, one way back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor

from grpo_train.config import load_config
from grpo_train.policy import compiled
from grpo_train.policy.compiled import CompiledBlocks, Float32Blocks
from grpo_train.policy.loading import Policy, recompute_activations
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.train import compiling
from grpo_train.train.compiling import CompileTrial, Compiling
from grpo_train.train.distributed import World
from grpo_train.train.gradients import GradientSum
from grpo_train.train.loop import accumulate_gradients
from tests.rollout.native.models import TOKENIZER, make_model
from tests.support.engine import (
    assert_same_run,
    config_text,
    resume_here,
    run_of,
    train_here,
    weights_hash,
    write_config,
)
from tests.train.test_host_waits import make_buffer, make_config
from tests.train.test_invariance import in_float64

CPU = torch.device("cpu")


def make_forward(adapter: str = "lora", **options: Any) -> LogprobForward:
    """In float64."""
    model = make_model("qwen3", lora=adapter == "lora")
    in_float64(model)
    model.requires_grad_(True) if adapter == "none" else None
    return LogprobForward(Policy(model.train(), TOKENIZER, CPU, "tiny"), temperature=0.9, **options)


def gradient(forward: LogprobForward, **changes: Any) -> torch.Tensor:
    config = make_config(**changes)
    buffer = make_buffer(ref_logps=config.algorithm.beta > 0, old_logps=True)
    gradients = GradientSum(forward.policy.trainable())
    gradients.start()
    accumulate_gradients(forward, buffer, 0, gradients, config)
    gradients.all_reduce(World())
    gradients.close()
    return torch.cat([p.grad.flatten() for p in forward.policy.trainable() if p.grad is not None]).clone()


WAYS: dict[str, dict[str, Any]] = {
    "packed": {},
    "one group a micro-batch": {"train__microbatch_size": 1},
    "a KL penalty and an entropy bonus": {"algorithm__beta": 0.1, "algorithm__entropy_coef": 0.01},
    "gspo, nothing skipped": {"algorithm__loss_type": "gspo", "train__skip_zero_advantages": False},
}


def without_inductor(function: Callable[..., Any]) -> Callable[..., Any]:
    """Everything but the generated code, whose compilation takes half a minute."""
    return torch.compile(function, dynamic=True, backend="aot_eager")


def test_generated_code_gives_the_same_gradients() -> None:
    """One compiled code for both blocks and for all lengths."""
    forward = make_forward("none")
    expected = {way: gradient(forward, **changes) for way, changes in WAYS.items()}
    counters = torch._dynamo.utils.counters
    counters.clear()
    forward.blocks = CompiledBlocks(forward.decoder)
    graphs = []
    for way, changes in WAYS.items():
        torch.testing.assert_close(gradient(forward, **changes), expected[way], atol=1e-12, rtol=0)
        graphs.append(counters["stats"]["unique_graphs"])
    assert len(set(graphs)) == 1, "other lengths and another loss need no other code"
    with torch.no_grad():
        forward.score(make_buffer().completions)
    assert counters["stats"]["unique_graphs"] == graphs[0], "a pass without gradient runs plain blocks"


@pytest.mark.parametrize(("adapter", "packing", "recomputed"), [("lora", True, True)])
def test_traced_blocks_give_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, adapter: str, packing: bool, recomputed: bool
) -> None:
    """tests/soak has the other combinations."""
    monkeypatch.setattr(compiled, "compile_function", without_inductor)
    forward = make_forward(adapter, packing=packing)
    expected = {way: gradient(forward, **changes) for way, changes in WAYS.items()}
    if recomputed:
        recompute_activations(forward.policy.model)
    forward.blocks = CompiledBlocks(forward.decoder)
    for way, changes in WAYS.items():
        torch.testing.assert_close(gradient(forward, **changes), expected[way], atol=1e-12, rtol=0)


def test_no_compiler_falls_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    forward = make_forward()
    decided = Compiling(forward, load_config(config_text(train__compile="on")), World())
    assert decided.is_considered
    with inductor.patch({"cpp.cxx": ("/nowhere/g++",)}):
        decided.decide(None)
    assert not decided.is_on
    assert decided.note.startswith("train.compile: blocks are not compiled: ")
    assert "C++ compiler" in decided.note or "/nowhere/g++" in decided.note
    assert gradient(forward).norm() > 0
    torch._dynamo.reset()


def test_a_cpu_compiles_only_on_request() -> None:
    for setting, considered in (("auto", False), ("off", False), ("on", True)):
        config = load_config(config_text(train__compile=setting))
        assert Compiling(make_forward(), config, World()).is_considered is considered
    assert load_config(config_text()).train.compile == "auto"


def never(self: Compiling) -> CompileTrial:
    raise AssertionError("no trial is needed")


@pytest.mark.parametrize(("speedup", "equal", "is_on"), [(1.2, True, True), (1.0, True, False), (1.2, False, False)])
def test_auto_compiles_what_pays(monkeypatch: pytest.MonkeyPatch, speedup: float, equal: bool, is_on: bool) -> None:
    forward = make_forward()

    def trial(self: Compiling) -> CompileTrial:
        forward.blocks = CompiledBlocks(forward.decoder)
        return CompileTrial(0.045, 0.056 if equal else 0.057, 0.05, 1e-4, speedup)

    monkeypatch.setattr(Compiling, "_try", trial)
    decided = Compiling(forward, load_config(config_text()), World())
    decided.is_considered = True  # as on a GPU
    decided.decide(None)
    assert decided.is_on is is_on, decided.note
    assert equal or decided.note.endswith(
        "gradients of compiled blocks differ by 5.70% of their norm from those in float32, of plain blocks by 4.50%; "
        "from each other by 5.00% (bound: 1.25 times as far as plain ones)"
    )
    decided.decide(True)
    assert decided.is_on is equal, "a checkpoint's decision holds, whatever the trial measures"
    monkeypatch.setattr(Compiling, "_try", never)
    forward.blocks = None
    decided.decide(False)
    assert not decided.is_on


def test_a_failure_during_training_falls_back_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The step is done again with plain blocks; a resume does not compile again."""
    torch.set_num_threads(1)
    plain = train_here(root, write_config(root, "plain.yaml"), "plain")
    calls = 0

    def fail_later(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 13:
                raise torch._dynamo.exc.TorchDynamoException("no such operation")
            return function(*args, **kwargs)

        return run

    monkeypatch.setattr(compiled, "compile_function", fail_later)
    cfg = write_config(root, "compiled.yaml", train__compile="on")
    run = train_here(root, cfg, "compiled")
    assert calls == 13
    text = capfd.readouterr().out
    assert (
        text.count("train.compile: training continues without compiled blocks: TorchDynamoException: no such operation")
        == 1
    )
    assert weights_hash(run, 6) == weights_hash(plain, 6)
    shutil.copytree(root, tmp_path / "copy", symlinks=True)
    again = run_of(tmp_path / "copy", "compiled")
    monkeypatch.setattr(Compiling, "_try", never)
    resume_here(again, "5")
    assert_same_run(run, again, 6)
    first = torch.load(run.training_state / "step_1" / "rows_per_pass.pt", weights_only=True)
    assert first["compiled"] == [True]


def test_runs_with_a_trial_resume_bit_for_bit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial draws no random numbers and leaves no gradients: dropout would differ."""
    torch.set_num_threads(1)
    monkeypatch.setattr(compiled, "compile_function", lambda function: function)
    cfg = write_config(root, train__compile="on", model__adapter="lora", model__lora_dropout=0.2)
    whole = train_here(root, cfg, "whole")
    run = train_here(root, cfg, "parts", "--until", "3")
    resume_here(run)
    assert_same_run(whole, run, 6)


def test_trial_times_three_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compile_function", lambda function: function)
    clock = iter([0.0, 1.0, 4.0, 0.0, 4.0, 6.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    forward = make_forward()
    sizes = [len(batch) for batch in compiling._micro_batches(make_config(), forward.vocabulary)]
    assert sizes == [8, 8, 8]
    trial = Compiling(forward, make_config(train__compile="on"), World())._try()
    assert trial == CompileTrial(plain=0.0, compiled=0.0, apart=0.0, least=1e-10, speedup=1.5)


def make_bfloat16_forward() -> LogprobForward:
    """Frozen bfloat16 weights, and an adapter in float32 under autocast."""
    model = make_model("qwen3", lora=True).to(torch.bfloat16).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return LogprobForward(Policy(model, TOKENIZER, CPU, "tiny", torch.bfloat16), temperature=0.9)


@pytest.mark.parametrize("recomputed", [False, True])
def test_blocks_in_float32_are_close_to_a_float32_model(recomputed: bool) -> None:
    forward = make_bfloat16_forward()
    rounded = gradient(forward)
    if recomputed:
        recompute_activations(forward.policy.model)
    forward.blocks = Float32Blocks(forward.decoder)
    found = gradient(forward)
    assert all("forward" not in vars(block) for block in forward.blocks.blocks)
    exact = gradient(LogprobForward(Policy(forward.policy.model.float(), TOKENIZER, CPU, "tiny"), temperature=0.9))
    assert (found - exact).norm() < 0.5 * (rounded - exact).norm()  # the head still rounds


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_rounding_is_told_from_a_fault(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    """Other roundings than those of plain blocks pass, a block that is 10 % off does not."""

    def other(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(block: Any, hidden: torch.Tensor, **kwargs: Any) -> Any:
            return function(block, hidden * 1.004, **kwargs) * ((1 + error) / 1.004)

        return run

    monkeypatch.setattr(compiled, "compile_function", other)
    forward = make_bfloat16_forward()
    decided = Compiling(forward, make_config(train__compile="on"), World())
    decided.decide(None)
    assert (decided.is_on, decided.note == "") == (error == 0.0, error == 0.0), decided.note
    forward.blocks = None
    trial = decided._try()
    assert 0.001 < trial.plain < 0.05
    assert trial.apart > 0
