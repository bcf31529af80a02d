"""Invariance of the gradient on CUDA: packed by varlen_attn or in buckets, chunked, in pieces, skipped or not.

In float32, with TF32 off, the gradients must agree closely. In bfloat16 they may differ as much as bfloat16 differs
from float32 by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rollout import Completion
from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.gpu import needs_gpu
from tests.train.test_invariance import PLAIN, WAYS, gradient_of, make_config, record

pytestmark = needs_gpu

LOSSES = ("dr_grpo", "gspo", "dapo")


@pytest.fixture(scope="module", autouse=True)
def _exact() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture(scope="module")
def gpu_root(make_root: Callable[[], Path]) -> Path:
    return make_root()


def on_gpu(root: Path, dtype: str, adapter: str = "none") -> Policy:
    model = make_config(model__dtype=dtype, model__adapter=adapter).model
    return load_policy(model, root, torch.device("cuda", 0))


@pytest.fixture(scope="module")
def state(gpu_root: Path) -> dict[str, Any]:
    return record(on_gpu(gpu_root, "float32"))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_gradient_is_the_same_however_computed(
    gpu_root: Path, state: dict[str, Any], loss: str, dtype: str, tolerance: float
) -> None:
    """Relative difference to the plain computation in the same precision. Nothing is clipped: for a token at the edge
    of the range, rounding would decide."""
    recording = on_gpu(gpu_root, dtype), state
    estimator = {"algorithm__loss_type": loss, "algorithm__epsilon": 5.0}
    expected = gradient_of(recording, make_config(**estimator, **PLAIN))
    for way, changes in WAYS.items():
        found = gradient_of(recording, make_config(**estimator, **changes))
        difference = ((found[1] - expected[1]).norm() / expected[1].norm()).item()
        print(f"{loss} {dtype} {way}: relative difference of the gradient {difference:.2e}")
        assert difference < tolerance, way


def test_bfloat16_is_close_to_float32(gpu_root: Path, state: dict[str, Any]) -> None:
    exact = gradient_of((on_gpu(gpu_root, "float32"), state), make_config())[1]
    narrow = gradient_of((on_gpu(gpu_root, "bfloat16"), state), make_config())[1]
    cosine = torch.nn.functional.cosine_similarity(exact, narrow, dim=0).item()
    print(f"bfloat16 against float32: cosine {cosine:.6f}, norm ratio {(narrow.norm() / exact.norm()).item():.4f}")
    assert cosine > 0.99


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_no_fallback_on_cuda(gpu_root: Path, adapter: str) -> None:
    """Packing and the chunked head work with this machine's versions, by varlen_attn in 16 bits."""
    forward = LogprobForward(on_gpu(gpu_root, "bfloat16", adapter), temperature=1.0)
    assert (forward.packed, forward.chunked, forward.notes) == (True, True, [])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampler_and_trainer_agree(gpu_root: Path, dtype: str) -> None:
    policy = on_gpu(gpu_root, dtype)
    prompts = policy.tokenizer(["12+34=", "7+5=", "99+99="])["input_ids"] * 16
    with policy.autocast():
        completions = TransformersBackend(policy.model, policy.tokenizer).generate(
            prompts, seeds=range(48), max_completion_length=30, temperature=1.0
        )
    scored = LogprobForward(policy, temperature=1.0).score(completions)
    d = torch.cat([s - torch.tensor(c.logps) for s, c in zip(scored, completions, strict=True)]).double()
    kl = (torch.expm1(d) - d).mean().item()
    print(f"{dtype}: mismatch KL {kl:.2e}, largest difference {d.abs().max().item():.3f}")
    assert kl < (1e-8 if dtype == "float32" else 1e-2)


def test_memory_is_constant_in_the_vocabulary(gpu_root: Path) -> None:
    """Peak of forward and backward above weights and gradients, for 16k completion tokens."""
    peaks = []
    for vocabulary in (8_000, 152_064):
        settings = Qwen2Config(
            vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip
        model = Qwen2ForCausalLM(settings).cuda().bfloat16()
        policy = Policy(model, on_gpu(gpu_root, "bfloat16").tokenizer, torch.device("cuda", 0), "none")
        forward = LogprobForward(policy, temperature=1.0)
        ids = torch.randint(vocabulary, (32, 512)).tolist()
        batch = [Completion(tuple(row[:8]), tuple(row[8:]), (), True) for row in ids]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        forward(batch).logps.sum().backward()
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        peaks.append((torch.cuda.max_memory_allocated() - before - weights) / 2**20)
        del policy, forward, model
        torch.cuda.empty_cache()
    print(f"MiB above weights and gradients, vocabulary 8k and 152k: {peaks[0]:.0f} {peaks[1]:.0f}")
    full = 32 * 504 * 152_064 * 4 / 2**20
    assert peaks[1] < full / 4, "full float32 logits would take four times as much"
