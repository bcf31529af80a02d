"""What is measured: a model with random weights in the shape of a known one, so nothing is downloaded."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from grpo_train.config.schema import Config
from grpo_train.platforms.memory import QWEN2_5, Shape
from grpo_train.policy.loading import Policy, add_adapter, compute_type, make_policy
from grpo_train.tiny.architectures import config_of
from grpo_train.tiny.tokenizer import make_tokenizer

NEVER = "<|never|>"
"""The end of a completion in the tokenizer: beyond the tiny model's vocabulary, so that completions have full length.
The large ones draw it once in 150,000 tokens."""


@dataclass(frozen=True)
class Subject:
    """How to make the model, as often as a comparison needs it."""

    settings: Any
    """A transformers config."""
    tokenizer: Any
    config: Config

    def model(self, device: torch.device, dtype: torch.dtype | None = None) -> Any:
        """The base model, with the same weights every time, in training mode."""
        from transformers import AutoModelForCausalLM

        if dtype is None:
            # Trained weights are float32 masters; those under an adapter have the compute type.
            is_master = self.config.model.adapter == "none"
            dtype = torch.float32 if is_master else compute_type(self.config.model, device)
        torch.manual_seed(0)
        with device:
            # Models must not share a config: it names the attention that each one uses.
            model = AutoModelForCausalLM.from_config(
                deepcopy(self.settings), dtype=dtype, attn_implementation=self.config.model.attention
            )
        model.generation_config.eos_token_id = self.tokenizer.eos_token_id
        return model.train()

    def policy(self, device: torch.device) -> Policy:
        """The policy as training loads it."""
        model = self.model(device)
        if self.config.model.adapter == "lora":
            model = add_adapter(model, self.config.model)
        dtype = compute_type(self.config.model, device)
        autocast = dtype if dtype.itemsize == 2 else None
        saving = self.config.train.gradient_checkpointing
        return make_policy(model, self.tokenizer, device, "random", autocast, gradient_checkpointing=saving)

    def prompts(self, count: int, seed: int = 0) -> list[str]:
        """Random digits, one token each, in the length of ``rollout.max_prompt_length``."""
        draw = random.Random(seed)
        return ["".join(draw.choices("0123456789", k=self.config.rollout.max_prompt_length)) for _ in range(count)]


def make_subject(config: Config) -> Subject:
    """The subject in the shape of ``model.backbone``: ``tiny`` or a key of ``QWEN2_5``."""
    tokenizer = make_tokenizer()
    settings = config_of("qwen2", tokenizer)
    if config.model.backbone != "tiny":
        settings.update(_fields(QWEN2_5[config.model.backbone]))
    tokenizer.add_special_tokens({"eos_token": NEVER})
    settings.eos_token_id = tokenizer.eos_token_id
    return Subject(settings, tokenizer, config)


def shape_of(name: str) -> Shape:
    """The shape of ``tiny`` or of a key of ``QWEN2_5``."""
    return QWEN2_5.get(name) or Shape.of(config_of("qwen2", make_tokenizer()).to_dict())


def _fields(shape: Shape) -> dict[str, Any]:
    return {
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.is_tied, "max_position_embeddings": 32_768, "initializer_range": 0.02,
        "layer_types": ["full_attention"] * shape.layers, "max_window_layers": shape.layers,
    }  # fmt: skip
