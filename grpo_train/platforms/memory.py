"""What training a model takes of a GPU's memory, estimated from its shape. Torch-free; not measured on a GPU.

The terms follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), for a
decoder with grouped queries, RMSNorm and a gated feed-forward layer, with an attention kernel that keeps no matrix of
scores. ``grpo-train fit`` measures instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir.safe_json import read_object

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ADAM_BYTES = 8
"""Two moments in float32."""
RESERVED_BYTES = 1.5 * 2**30
"""CUDA's context, libraries and fragments."""
CACHE_COPIES = 1.25
"""A growing cache holds an old and a new tensor of one layer at a time."""
LEAST_ROWS = 32
"""Completions that are generated at once, at least; fewer leave a GPU idle."""
HEAD_COPIES = 2.5
"""Log-probabilities in chunks: logits and their probabilities in float32, and a rounded factor."""
_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "tie_word_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The sizes of a causal language model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    is_tied: bool
    """Whether the head shares the embedding's weights."""

    @classmethod
    def read(cls, config_file: Path) -> Shape:
        """From a model's ``config.json``. Raises OSError, Unreadable, and what :meth:`of` raises."""
        return cls.of(read_object(config_file, finite=False) or {})

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Shape:
        """From the fields of a model's config. Raises KeyError, ValueError, TypeError."""
        heads = int(facts["num_attention_heads"])
        return cls(
            hidden=int(facts["hidden_size"]),
            intermediate=int(facts.get("intermediate_size") or 4 * int(facts["hidden_size"])),
            layers=int(facts["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(facts.get("num_key_value_heads") or heads),
            head_dim=int(facts.get("head_dim") or int(facts["hidden_size"]) // heads),
            vocabulary=int(facts["vocab_size"]),
            is_tied=bool(facts.get("tie_word_embeddings", True)),
        )

    @classmethod
    def of_model(cls, model: Any) -> Shape:
        """Of a loaded model: transformers names every architecture's sizes alike. Raises TypeError for other ones."""
        config = model.config.get_text_config()
        return cls.of({name: getattr(config, name, None) for name in _SIZES})

    @property
    def cache_numbers(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All weights, norms and biases left out."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden * (1 if self.is_tied else 2)

    def adapter_parameters(self, rank: int) -> int:
        """Weights of a LoRA adapter on every matrix of the layers."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = 2 * (self.hidden + q) + 2 * (self.hidden + kv) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * widths


QWEN2_5 = {
    "qwen2_5_05": Shape(896, 4864, 24, 14, 2, 64, 151_936, True),
    "qwen2_5_15": Shape(1536, 8960, 28, 12, 2, 128, 151_936, True),
    "qwen2_5_3": Shape(2048, 11_008, 36, 16, 2, 128, 151_936, True),
}
"""From the models' ``config.json`` on the hub; the ``_instruct`` variants have the same."""


def state_bytes(shape: Shape, config: Config, dtype: str) -> float:
    """Weights, gradients and optimizer, and the copy that native rollouts draw from."""
    is_native = config.rollout.backend == "native"
    if config.model.adapter == "lora":
        trained = shape.adapter_parameters(config.model.lora_rank)
        merged = shape.layers * shape.layer_parameters if is_native else 0
        return (shape.parameters + merged) * BYTES[dtype] + trained * (4 + 4 + ADAM_BYTES)
    copies = (BYTES[dtype] if dtype != "float32" else 0) + (BYTES[dtype] if is_native else 0)  # the first: autocast's
    return shape.parameters * (4 + 4 + ADAM_BYTES + copies)


def checkpoint_bytes(shape: Shape, config: Config) -> int:
    """A checkpoint: the trained weights and the optimizer's moments, in float32."""
    is_lora = config.model.adapter == "lora"
    trained = shape.adapter_parameters(config.model.lora_rank) if is_lora else shape.parameters
    return trained * (4 + ADAM_BYTES)


def completions_at_once(config: Config) -> int:
    """Completions that a process generates at once where memory allows it."""
    rollout = config.rollout
    return rollout.generation_batch_size or max(1, rollout.buffer_size * rollout.num_generations // config.run.nproc)


def rollout_bytes(shape: Shape, config: Config, dtype: str) -> float:
    """Keys and values of the completions that are generated at once, and their logits."""
    rollout = config.rollout
    logits = shape.vocabulary * (4 + 4 + 4 + 4)
    per_token: float = shape.cache_numbers * BYTES[dtype]
    if rollout.backend == "transformers":
        # Full weights under autocast: the cache is float32, because rotary embeddings are.
        per_token = shape.cache_numbers * (BYTES[dtype] if config.model.adapter == "lora" else 4) * CACHE_COPIES
    return completions_at_once(config) * (
        per_token * (rollout.max_prompt_length + rollout.max_completion_length) + logits
    )


def activation_bytes(shape: Shape, config: Config, dtype: str) -> float:
    """What the backward pass needs of one prompt's completions at their longest."""
    rollout = config.rollout
    tokens = rollout.num_generations * (rollout.max_prompt_length + rollout.max_completion_length)
    return tokens * activation_bytes_per_token(shape, config, dtype)


def activation_bytes_per_token(shape: Shape, config: Config, dtype: str) -> float:
    """What the backward pass needs of one token.

    An adapter's matrices read the inputs that the layer's own would keep, so that LoRA adds nothing.
    """
    width = BYTES[dtype]
    kv = shape.kv_heads * shape.head_dim
    layer = 10 * shape.hidden * width + 4 * kv * width + 4 * shape.intermediate * width + 8 * shape.hidden
    kept = shape.layers * layer
    if config.train.gradient_checkpointing:
        between = width if config.model.adapter == "lora" else 4  # full weights have a float32 residual stream
        kept = shape.layers * shape.hidden * between + layer
    if not config.train.chunked_logprobs:
        kept += shape.vocabulary * 12
    return kept


def head_bytes(memory: float) -> float:
    """Log-probabilities in chunks on a GPU with ``memory`` bytes (:mod:`grpo_train.policy.head`)."""
    return HEAD_COPIES * min(2**31, memory / 128)


def update_bytes(shape: Shape, config: Config, dtype: str, prompts: int, memory: float) -> float:
    """What a pass over ``prompts`` needs, or one of ``train.token_budget`` tokens."""
    rollout = config.rollout
    tokens = prompts * rollout.num_generations * (rollout.max_prompt_length + rollout.max_completion_length)
    tokens = min(tokens, config.token_budget or tokens)
    return tokens * activation_bytes_per_token(shape, config, dtype) + head_bytes(memory)


def least_bytes(shape: Shape, config: Config, dtype: str, memory: float, prompts: int = 0) -> float:
    """Memory without which a process does not train: state, and the larger of a pass and LEAST_ROWS completions.

    Rollouts take as many completions at once as there is room for, and ``train.token_budget: auto`` splits a
    micro-batch down to one completion.

    Args:
        memory: that of the GPU.
        prompts: a pass of this many, not split; 0 = the smallest pass that the config allows.
    """
    if config.train.token_budget == "auto" and not prompts:
        completion = activation_bytes(shape, config, dtype) / config.rollout.num_generations
        update = completion + head_bytes(memory)
    else:
        update = update_bytes(shape, config, dtype, max(1, prompts), memory)
    rows = min(1.0, LEAST_ROWS / completions_at_once(config)) * rollout_bytes(shape, config, dtype)
    return state_bytes(shape, config, dtype) + max(update, rows) + RESERVED_BYTES


def training_bytes(shape: Shape, config: Config, dtype: str, prompts: int, memory: float) -> float:
    """Peak memory of one process with nothing split: state, and the larger of all rollouts at once and a micro-batch
    of ``prompts``.

    ``memory`` is that of the GPU.
    """
    update = update_bytes(shape, config, dtype, prompts, memory)
    return state_bytes(shape, config, dtype) + max(update, rollout_bytes(shape, config, dtype)) + RESERVED_BYTES
