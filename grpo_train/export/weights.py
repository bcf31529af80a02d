"""Writing the model of an export: an adapter as trained, or all weights, merged in float32 and rounded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GenerationConfig

from grpo_train.config.schema import Config
from grpo_train.export.plan import ExportError, ExportPlan
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import hub_id
from grpo_train.policy.tokenizer import eos_ids
from grpo_train.run_dir.files import atomic_write, read_json, to_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHARD = "5GB"
"""Largest file of weights, as on the hub."""
TOLERANCE, ROUNDING = 1e-2, 1e-4
"""Largest difference between the logits of the adapter and of the merged model, both in float32: as a share of what the
adapter changes, and of the logits."""


def write_weights(plan: ExportPlan, folder: Path) -> Any:
    """Write config, weights and generation config to ``folder``; returns the tokenizer. Runs on the CPU.

    Raises ExportError if merging changes what the model says, PolicyError if the model cannot be loaded.
    """
    if plan.is_adapter:
        _copy_adapter(plan, folder)
        tokenizer = AutoTokenizer.from_pretrained(plan.weights)
        generation_config(_base_generation(plan.base), tokenizer, plan.config).save_pretrained(folder)
        return tokenizer
    policy = _load(plan)
    model = _merged(policy) if plan.is_trained_adapter else policy.model
    model.to(DTYPES[plan.dtype or "float32"])
    model.generation_config = generation_config(model.generation_config, policy.tokenizer, plan.config)
    model.save_pretrained(folder, max_shard_size=SHARD)
    return policy.tokenizer


def generation_config(base: GenerationConfig | None, tokenizer: Any, config: Config) -> GenerationConfig:
    """Sampling as in training, with every token that ends a completion.

    The base model's own sampling (a repetition penalty, say) is left out: the run was trained without it.
    """
    return GenerationConfig(
        do_sample=True,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=eos_ids(base, tokenizer),
        pad_token_id=tokenizer.pad_token_id,
    )


def _base_generation(base: str) -> GenerationConfig | None:
    """Generation config of a model; None if it has none."""
    name, commit = (base, None) if Path(base).is_dir() else hub_id(base)
    try:
        return GenerationConfig.from_pretrained(name, revision=commit or "main")
    except OSError:  # a model without one
        return None


def _load(plan: ExportPlan) -> Policy:
    attention = "eager" if plan.config.model.attention == "eager" else "sdpa"
    settings = plan.config.model.model_copy(update={"dtype": "float32", "attention": attention})
    return load_policy(
        settings, plan.run.root, torch.device("cpu"), weights=plan.weights, base=plan.base or None, trainable=False
    )


def _copy_adapter(plan: ExportPlan, folder: Path) -> None:
    """peft's two files, with the base as hub ID and commit."""
    config = read_json(plan.weights / "adapter_config.json") or {}
    config |= {"base_model_name_or_path": plan.base_name, "revision": plan.base_commit, "inference_mode": True}
    atomic_write(folder / "adapter_config.json", to_json(config) + "\n")
    tensors = load_file(plan.weights / "adapter_model.safetensors")
    if plan.dtype:
        tensors = {name: tensor.to(DTYPES[plan.dtype]) for name, tensor in tensors.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _merged(policy: Policy) -> Any:
    """The base model with the adapter added. Raises ExportError if the logits differ from the adapter's."""
    ids = torch.tensor([policy.tokenizer("The sum of 12 and 30 is 42.")["input_ids"]])
    with torch.inference_mode():
        expected = policy.model(input_ids=ids).logits
        with policy.model.disable_adapter():
            change = (policy.model(input_ids=ids).logits - expected).abs().max()
    is_tied = policy.model.config.get_text_config().tie_word_embeddings
    if is_tied:
        _untie(policy.model.get_base_model())
    model = policy.model.merge_and_unload(safe_merge=True)
    if is_tied:  # as the merged weights are
        is_tied = model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
        model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = is_tied
    with torch.inference_mode():
        difference = (model(input_ids=ids).logits - expected).abs().max()
    if not difference <= TOLERANCE * change + ROUNDING * expected.abs().max():
        raise ExportError(
            f"the merged model differs from the adapter (logits by {float(difference):.2g}, where the adapter changes "
            f"them by {float(change):.2g}); export the adapter instead (without --merge)"
        )
    return model


def _untie(model: Any) -> None:
    """Separate tied embeddings and output layer where an adapter is on one of them: merged, it would change both."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if any(isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) for module in (embeddings, head)):
        own = getattr(head, "base_layer", None) or getattr(head, "original_module", None) or head
        own.weight = torch.nn.Parameter(own.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = False
