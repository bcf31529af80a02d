"""Small models with random weights, and log-probabilities of completions under them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from grpo_train.policy.loading import Policy
from grpo_train.policy.logprobs import LogprobForward, TokenLogprobs
from grpo_train.rollout import Completion

V = 97
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}


def gpt2() -> Any:
    sizes: dict[str, Any] = {"vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, initializer_range=0.2, bos_token_id=1, eos_token_id=2))


def qwen2(**changes: Any) -> Any:
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "tie_word_embeddings": True, **changes}))


def lora() -> Any:
    """An adapter with random weights; a fresh one is the identity."""
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(qwen2(), settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def policy_of(model: Any, dtype: torch.dtype = torch.float64, autocast: torch.dtype | None = None) -> Policy:
    model = model.to(dtype)
    if dtype == torch.float64:
        # transformers' RMSNorm always computes in float32, which adds noise of 1e-7
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child).__name__.endswith("RMSNorm") and not isinstance(child, torch.nn.RMSNorm):
                    norm = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=dtype)
                    norm.weight = child.weight
                    setattr(parent, name, norm)
    return Policy(model.train(), SimpleNamespace(pad_token_id=0), torch.device("cpu"), "base", autocast)


def forward_of(policy: Policy, **options: Any) -> LogprobForward:
    return LogprobForward(policy, temperature=0.8, **options)


def completions_of() -> list[Completion]:
    """Three per prompt, of 0 to 40 tokens; one prompt has a single token."""
    draw = random.Random(0)
    made = []
    for prompt, lengths in ((7, (9, 17, 5)), (1, (40, 0, 5)), (12, (2, 1, 5)), (3, (1, 0, 0))):
        prompt_ids = tuple(draw.randrange(1, V) for _ in range(prompt))
        made += [Completion(prompt_ids, tuple(draw.randrange(1, V) for _ in range(n)), (), True) for n in lengths]
    return made


def weights_of(values: Tensor) -> Tensor:
    """All different, so that errors cannot cancel."""
    return torch.cos(torch.arange(values.numel(), dtype=values.dtype)).view_as(values)


def total(found: TokenLogprobs, *, entropy: bool = True) -> Tensor:
    weights = weights_of(found.logps)
    return (found.logps * weights).sum() + ((found.entropy * weights.flip(0)).sum() if entropy else 0.0)


def gradients(policy: Policy, value: Tensor) -> dict[str, Tensor]:
    policy.model.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
