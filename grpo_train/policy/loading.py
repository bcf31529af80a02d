"""From a name in the config to a model on a device: backbones, adapters, checkpoints, and back to files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from grpo_train.config.schema import Model
from grpo_train.policy.locate import (
    PolicyError,
    adapter_of,
    check_base,
    hub_commit,
    hub_id,
    recorded_base,
    resolve_backbone,
)


@dataclass
class Policy:
    """A model with its tokenizer, and how it computes."""

    model: Any
    tokenizer: Any
    device: torch.device
    base: str
    """Where the weights under the adapter (or the first full weights) came from: a hub id at its commit, a path
    relative to the root, or an absolute path outside it."""
    autocast_dtype: torch.dtype | None = None
    """Set where float32 master weights compute in a smaller type."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which forwards run."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)

    def trainable(self) -> list[torch.nn.Parameter]:
        """Parameters that are trained, in the model's order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def save(self, folder: Path) -> None:
        """Write adapter or full weights with the tokenizer, in peft's / Hugging Face's own format."""
        folder.mkdir(parents=True)
        for adapter in getattr(self.model, "peft_config", {}).values():
            # Never an absolute path: a moved root must still work.
            adapter.base_model_name_or_path, adapter.revision = hub_id(self.base)
        # "auto" would look the base's vocabulary up, on the hub where the base has no directory; it never changes here.
        extra = {"save_embedding_layers": False} if hasattr(self.model, "peft_config") else {}
        self.model.save_pretrained(folder, safe_serialization=True, **extra)
        self.tokenizer.save_pretrained(folder)


def pick_device(local_rank: int = 0) -> torch.device:
    """This process's device: the GPU of its local rank, or the CPU."""
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def load_policy(
    settings: Model,
    root: Path,
    device: torch.device,
    *,
    weights: Path | None = None,
    base: str | None = None,
    trainable: bool = True,
    gradient_checkpointing: bool = False,
) -> Policy:
    """Load the policy on ``device``.

    Args:
        settings: the ``model`` section.
        weights: a checkpoint's model directory (adapter or full weights); None = fresh from the backbone.
        base: the base model for an adapter (``--base``, or what a checkpoint recorded); default the backbone.
        trainable: False loads for evaluation: the smallest dtype, nothing requires a gradient.

    Raises PolicyError when a model is missing or an adapter and the settings disagree.
    """
    kind = adapter_of(weights) if weights else None
    if kind == "none":
        assert weights is not None
        source = str(weights)
    else:
        source = _at_its_commit(resolve_backbone(base or settings.backbone, root))
    on_gpu = device.type == "cuda"
    wants_master = trainable and settings.adapter == "none"
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(
        settings.dtype, torch.bfloat16 if on_gpu else torch.float32
    )
    model, tokenizer = _load(source, torch.float32 if wants_master else dtype, settings.attention)
    if kind == "lora":
        from peft import PeftModel

        assert weights is not None
        check_base(weights, source, root)
        try:
            model = PeftModel.from_pretrained(model, str(weights), is_trainable=trainable)
        except (RuntimeError, ValueError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise PolicyError(f"the adapter {weights} does not load on {source}: {reason}") from error
    elif settings.adapter == "lora" and trainable:
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            target_modules=settings.lora_targets,
            task_type="CAUSAL_LM",
        )
        try:
            model = get_peft_model(model, adapter)
        except ValueError as error:
            raise PolicyError(f"model.lora_targets {settings.lora_targets}: {str(error).splitlines()[0]}") from error
    if not trainable:
        model.requires_grad_(False)
    model.train(trainable)  # dropout and gradient checkpointing act in training mode only
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.to(device)
    recorded = recorded_base(source, root)
    # Trained weights are float32 (peft keeps adapters so, too); without autocast an adapter would compute in float32.
    autocast = torch.bfloat16 if trainable and dtype == torch.bfloat16 else None
    return Policy(model, tokenizer, device, recorded, autocast)


def _at_its_commit(resolved: str) -> str:
    """A hub id with its commit, since the hub's next may be another model; a directory as it is."""
    if Path(resolved).is_dir():
        return resolved
    name, commit = hub_id(resolved)
    commit = commit or hub_commit(name)
    found = f"{name}@{commit}" if commit else name
    if os.environ.get("RANK", "0") == "0":
        print(f"loading {found}: the hub sends it first where this machine does not have it", flush=True)
    return found


def _from_hub(load: Callable[..., tuple[Any, Any]], name: str, commit: str) -> tuple[Any, Any]:
    """From the hub; where it is down, or has lost that commit, from what it gave this machine once."""
    try:
        return load(name, revision=commit)
    except (OSError, ValueError) as refused:
        try:
            return load(name, revision=commit, local_files_only=True)
        except (OSError, ValueError):
            raise refused from None


def _load(source: str, dtype: torch.dtype, attention: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # the console log is a file
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # about peft's use of it

    def load(name: str, **where: Any) -> tuple[Any, Any]:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation=attention, **where)
        return model, AutoTokenizer.from_pretrained(name, **where)

    name, commit = (source, None) if Path(source).is_dir() else hub_id(source)
    try:
        model, tokenizer = _from_hub(load, name, commit) if commit else load(name)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        way_out = (
            "set model.attention: eager"
            if "attn_implementation" in reason
            else "a directory must hold config.json, weights and a tokenizer; a hub name needs the network or a filled "
            "cache"
        )
        raise PolicyError(f"cannot load the model '{source}': {reason} ({way_out})") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False  # Llama's asks for it; what is judged is what was said
    return model, tokenizer
