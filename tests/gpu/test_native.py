"""Native rollouts on CUDA: tokens of the transformers backend, no waiting between looks, memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.policy.loading import Policy
from grpo_train.policy.logprobs import LogprobForward, pad_values
from grpo_train.policy.memory import free_bytes, kept_bytes, release_kept
from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.decoding import Decoding
from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.gpu import needs_gpu
from tests.gpu.test_invariance import on_gpu

pytestmark = needs_gpu

OPTIONS: dict[str, Any] = {"seeds": range(64), "max_completion_length": 48, "temperature": 1.0}


def prompts_of(tokenizer: Any) -> list[list[int]]:
    found: list[list[int]] = tokenizer([f"{a}+{b}=" for a in range(10, 18) for b in range(20, 28)])["input_ids"]
    return found


def copy_of(policy: Policy, **options: Any) -> NativeBackend:
    """As training makes it: weights and caches in the policy's compute type."""
    return NativeBackend(policy.model, policy.tokenizer, dtype=policy.autocast_dtype, **options)


def test_samples_equal_those_of_transformers(make_root: Callable[[], Path]) -> None:
    policy = on_gpu(make_root(), "float32")
    prompts = prompts_of(policy.tokenizer)
    native, reference = (kind(policy.model, policy.tokenizer) for kind in (NativeBackend, TransformersBackend))
    mine, theirs = (backend.generate(prompts, batch_size=24, **OPTIONS) for backend in (native, reference))
    different = sum(one.ids != other.ids for one, other in zip(mine, theirs, strict=True))
    print(f"{different} of 64 completions differ in float32")
    assert different <= 2


def test_logprobs_in_bfloat16(make_root: Callable[[], Path]) -> None:
    policy = on_gpu(make_root(), "bfloat16")
    found = copy_of(policy).generate(prompts_of(policy.tokenizer), **OPTIONS)
    with torch.no_grad():
        tokens = LogprobForward(policy, temperature=1.0)(found)
    sampled = pad_values([one.logps for one in found], tokens.logps.shape[1]).to(policy.device)
    ratio = (tokens.logps - sampled)[tokens.mask.bool()].double()
    kl = float((ratio.exp() - 1 - ratio).mean())
    print(f"mismatch KL {kl:.1e}, aim 2e-3")
    assert kl < 0.02


def test_cuda_graphs_generate_the_same_tokens_faster(make_root: Callable[[], Path]) -> None:
    policy = on_gpu(make_root(), "bfloat16")
    prompts = prompts_of(policy.tokenizer)
    seconds, tokens = {}, {}
    for is_recorded in (True, False):
        backend = copy_of(policy, cuda_graphs=is_recorded)
        assert (backend._recorder is not None) is is_recorded, "the trial failed: see the line that it printed"
        tokens[is_recorded] = [one.ids for one in backend.generate(prompts, batch_size=24, **OPTIONS)]
        began = time.perf_counter()
        again = backend.generate(prompts, batch_size=24, **OPTIONS)
        seconds[is_recorded] = time.perf_counter() - began
        assert sum(one.ids != ids for one, ids in zip(again, tokens[is_recorded], strict=True)) <= 2
        assert (kept_bytes(policy.device) > 0) is is_recorded
        release_kept()
    different = sum(one != other for one, other in zip(tokens[True], tokens[False], strict=True))
    print(f"{different} of 64 completions differ in bfloat16; {seconds[False] / seconds[True]:.2f} times as fast")
    assert different <= 16, "other kernels round differently, rarely at a boundary"


@pytest.mark.parametrize("compile_layers", [False, True], ids=["eager", "compiled"])
def test_nothing_is_switched_off(make_root: Callable[[], Path], compile_layers: bool) -> None:
    """FlashAttention, shared prompts, compiled layers and graphs pass their trials; shared and copied prompts agree."""
    policy = on_gpu(make_root(), "bfloat16")
    prompts = [prompt for prompt in prompts_of(policy.tokenizer)[:16] for _ in range(4)]
    tokens = []
    for is_shared in (False, True):
        backend = copy_of(policy, compile_layers=compile_layers)
        assert backend.fallbacks == {}
        assert backend._is_flash
        backend._can_share = is_shared
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(native.SHARE_FROM, "cuda", 0)
            tokens.append([one.ids for one in backend.generate(prompts, batch_size=24, **OPTIONS)])
    different = sum(one != other for one, other in zip(*tokens, strict=True))
    print(f"{different} of 64 completions differ between copied and shared prompts in bfloat16")
    assert different <= 16


def test_the_host_waits_only_at_looks(make_root: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    policy = on_gpu(make_root(), "bfloat16")
    backend = copy_of(policy)
    prompts = prompts_of(policy.tokenizer)
    backend.generate(prompts, batch_size=24, **OPTIONS)
    step = Decoding._step

    def without_waiting(self: Decoding) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(self)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Decoding, "_step", without_waiting)
    release_kept()  # recorded steps call no function
    assert len(backend.generate(prompts, batch_size=24, **OPTIONS)) == 64


def test_slots_fit_into_the_free_memory(make_root: Callable[[], Path], capsys: pytest.CaptureFixture[str]) -> None:
    policy = on_gpu(make_root(), "bfloat16")
    backend = copy_of(policy)
    free = free_bytes(policy.device)
    ballast = torch.empty(max(0, free - 2**30), dtype=torch.uint8, device=policy.device)
    prompts = prompts_of(policy.tokenizer) * 64
    found = backend.generate(prompts, **{**OPTIONS, "seeds": range(len(prompts))})
    del ballast
    assert len(found) == len(prompts)
    assert "out of memory" not in capsys.readouterr().out
