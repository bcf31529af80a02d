"""Generation on CUDA: automatic batch sizes, and halving when memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from grpo_train.evaluation.workers.memory import automatic_batch_size
from grpo_train.policy.memory import free_bytes
from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.gpu import needs_gpu
from tests.gpu.test_invariance import on_gpu

pytestmark = needs_gpu

PROMPT, BUDGET, LEFT = 64, 192, 8 * 2**30


@pytest.fixture
def backend(make_root: Callable[[], Path]) -> Iterator[TransformersBackend]:
    """A model of Qwen2.5-0.5B's size with random weights, and 8 GiB of free memory."""
    settings = Qwen2Config(
        vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(settings).bfloat16().eval()
    tokenizer = AutoTokenizer.from_pretrained(make_root() / "models" / "tiny")
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, free - LEFT), dtype=torch.uint8, device="cuda")
    yield TransformersBackend(model, tokenizer)
    del ballast, model
    gc.collect()
    torch.cuda.empty_cache()


def generate(backend: TransformersBackend, count: int) -> list[int]:
    prompts = torch.randint(200, 150_000, (count, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()
    found = backend.generate(prompts, seeds=range(count), max_completion_length=BUDGET, temperature=1.0)
    return [len(one.ids) for one in found]


def test_automatic_batch_fits_and_fills_memory(
    backend: TransformersBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    device = torch.device("cuda", 0)
    free = free_bytes(device)
    size = automatic_batch_size(backend._model, device, PROMPT, BUDGET, 10**6)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert len(generate(backend, size)) == size
    share = (torch.cuda.max_memory_allocated() - before) / free
    print(f"{size} completions at once take {share:.2f} of {free / 2**30:.1f} GiB")
    assert "out of memory" not in capsys.readouterr().out
    assert share > 0.6


def test_too_large_batch_is_halved(backend: TransformersBackend, capsys: pytest.CaptureFixture[str]) -> None:
    count = 4 * automatic_batch_size(backend._model, torch.device("cuda", 0), PROMPT, BUDGET, 10**6)
    assert len(generate(backend, count)) == count
    assert "out of memory: continuing with" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_completions_hardly_depend_on_the_batch(make_root: Callable[[], Path], dtype: str) -> None:
    """Kernels round differently for another batch shape, which occasionally decides between two tokens."""
    policy = on_gpu(make_root(), dtype)
    prompts = policy.tokenizer([f"{a}+{b}=" for a in range(10, 18) for b in range(20, 28)])["input_ids"]
    options: dict[str, Any] = {"seeds": range(64), "max_completion_length": 24, "temperature": 1.0}
    together, apart = (
        TransformersBackend(policy.model, policy.tokenizer).generate(prompts, batch_size=size, **options)
        for size in (0, 7)
    )
    same = sum(a.ids == b.ids for a, b in zip(together, apart, strict=True)) / 64
    print(f"{dtype}: {same:.2f} of the completions are equal in batches of 64 and of 7")
    assert same > (0.95 if dtype == "float32" else 0.5)
