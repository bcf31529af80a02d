"""Tiny models of the architectures that people train, with random weights: what runs on them runs on the large ones.

The shapes keep what is special to each: grouped keys and values, tied embeddings, biases, norms of queries and keys,
sliding windows shorter than a completion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Architecture = Literal["qwen2", "qwen3", "llama", "smollm", "gemma3"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


def random_model(architecture: Architecture, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A float32 model with random weights from torch's global generator, for this tokenizer."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_config(config_of(architecture, tokenizer))
    return model


def config_of(architecture: Architecture, tokenizer: PreTrainedTokenizerFast) -> Any:
    """A ``PretrainedConfig``: two layers of width 192; for gemma3 six of width 64, as each sixth of Gemma's layers sees
    everything."""
    from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        # 0.02 is for widths of thousands; at this width the loss would stay on a plateau for hundreds of steps.
        "initializer_range": 0.06,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
    }  # fmt: skip
    if architecture == "qwen3":
        return Qwen3Config(**shape, head_dim=32)
    if architecture == "llama":
        rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
        return LlamaConfig(
            **shape, rope_parameters=rope | {"high_freq_factor": 4.0, "original_max_position_embeddings": 512}
        )
    if architecture == "smollm":  # SmolLM2-1.7B is a Llama with as many keys as queries
        return LlamaConfig(
            **shape | {"num_key_value_heads": 6}, rope_parameters={"rope_type": "default", "rope_theta": 130000.0}
        )
    if architecture == "gemma3":
        narrow = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4}
        return Gemma3TextConfig(**shape | narrow | {"num_key_value_heads": 1}, head_dim=32, sliding_window=64)
    return Qwen2Config(**shape)
