"""Models of several architectures, prompts, and a call of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from grpo_train.rollout import Completion, RolloutBackend
from grpo_train.tiny.architectures import Architecture, config_of
from grpo_train.tiny.tokenizer import make_tokenizer

TOKENIZER = make_tokenizer()
BUDGET = 24


def make_model(architecture: Architecture = "qwen2", *, lora: bool = False, dtype: torch.dtype = torch.float64) -> Any:
    """In float64, rounding by the shape of a batch is far too small to change a token."""
    torch.manual_seed(0)
    model = small_model(architecture).to(dtype).eval()
    model.generation_config.eos_token_id = list(range(60, 90))  # completions of all lengths
    return with_adapter(model) if lora else model


def small_model(architecture: Architecture) -> Any:
    """Two layers of width 64, where the tiny models of :mod:`grpo_train.tiny.architectures` have 192."""
    config = config_of(architecture, TOKENIZER)
    if architecture != "gemma3":  # is as narrow, with the six layers that its windows need
        shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
        config.update({**shape, "head_dim": 16})
    return AutoModelForCausalLM.from_config(config)


def with_adapter(model: Any, **settings: Any) -> Any:
    options: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False, **settings}
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options)).eval()


def make_prompts() -> list[list[int]]:
    """37 of 3 to 40 tokens: twelve three times, and one alone."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 40, (12,), generator=generator).tolist()
    unique = [torch.randint(3, 60, (length,), generator=generator).tolist() for length in lengths]
    return [prompt for prompt in unique for _ in range(3)] + [[5, 6]]


PROMPTS = make_prompts()


def generate(backend: RolloutBackend, prompts: Sequence[Sequence[int]] = PROMPTS, **changes: Any) -> list[Completion]:
    options: dict[str, Any] = {
        "seeds": range(len(prompts)), "max_completion_length": BUDGET, "temperature": 1.0, **changes
    }  # fmt: skip
    return backend.generate(prompts, **options)


def greedy_by_transformers(model: Any, prompt: list[int]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    options: dict[str, Any] = {"max_new_tokens": BUDGET, "do_sample": False}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=TOKENIZER.pad_token_id, **options)
    return tuple(found[0, len(prompt) :].tolist())
