"""Loading a policy from a backbone, an adapter or a checkpoint, and saving it."""

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
from grpo_train.policy.device import check_device
from grpo_train.policy.locate import (
    PolicyError,
    adapter_of,
    check_base,
    hub_commit,
    hub_id,
    recorded_base,
    resolve_backbone,
)
from grpo_train.run_dir.signs import downloading
from grpo_train.tasks.shared.hub import hub_answers

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Policy:
    """A model with its tokenizer, device and arithmetic."""

    model: Any
    tokenizer: Any
    device: torch.device
    base: str
    """Source of the weights under the adapter (or of the first full weights): a hub id at its commit, a path relative
    to the root, or an absolute path outside it."""
    autocast_dtype: torch.dtype | None = None
    """Compute type of float32 master weights, where it is smaller."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Context manager for forward passes."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)

    @property
    def device_name(self) -> str:
        """The GPU's model, or ``CPU``."""
        return device_name(self.device)

    def trainable(self) -> list[torch.nn.Parameter]:
        """Trained parameters, in the model's order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def save(self, folder: Path) -> None:
        """Write the adapter or the full weights with the tokenizer, in peft's or Hugging Face's format."""
        folder.mkdir(parents=True)
        for adapter in getattr(self.model, "peft_config", {}).values():
            # Not an absolute path, so that a moved root still works.
            adapter.base_model_name_or_path, adapter.revision = hub_id(self.base)
        # The default looks up the base's vocabulary, on the hub for a hub model. The vocabulary never changes here.
        extra = {"save_embedding_layers": False} if hasattr(self.model, "peft_config") else {}
        self.model.save_pretrained(folder, safe_serialization=True, **extra)
        self.tokenizer.save_pretrained(folder)


def pick_device(setting: str, local_rank: int = 0) -> torch.device:
    """This process's device: the GPU of its local rank, or the CPU.

    Args:
        setting: ``model.device``.

    Raises PolicyError where this machine has GPUs that torch cannot use, or too few, unless ``setting`` is ``cpu``.
    """
    if setting == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        check_device(setting, nproc=1)
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        check_device(setting, nproc=local_rank + 1)
    # On Hopper and Blackwell, PyTorch may prefer cuDNN attention, which spends hundreds of milliseconds on a plan for
    # each new shape. Packed batches and growing completions bring new shapes all the time.
    # github.com/pytorch/pytorch/pull/155958, github.com/modelscope/FunASR/issues/3704
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", local_rank)


def automatic_dtype(device: torch.device) -> torch.dtype:
    """The type of ``model.dtype: auto``: bfloat16 on GPUs of compute capability 8 and newer, float16 on older ones,
    float32 on a CPU."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def device_name(device: torch.device) -> str:
    """The GPU's model, or ``CPU``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


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
        weights: a checkpoint's model directory (adapter or full weights); default: fresh from the backbone.
        base: the base model of an adapter (``--base``, or the one recorded by a checkpoint); default: the backbone.
            Full weights need neither: model, config and tokenizer come from their directory.
        trainable: False loads for evaluation, in the smallest dtype and without gradients.

    Raises PolicyError when a model is missing, or an adapter and the settings disagree.
    """
    kind = adapter_of(weights) if weights else None
    if kind == "none":
        assert weights is not None
        source = str(weights)
    else:
        source = _pinned(resolve_backbone(base or settings.backbone, root))
    wants_master = trainable and settings.adapter == "none"
    dtype = _DTYPES.get(settings.dtype) or automatic_dtype(device)
    model, tokenizer = _load(source, torch.float32 if wants_master else dtype, settings.attention)
    if kind == "lora":
        from peft import PeftModel

        assert weights is not None
        check_base(weights, source, root)
        try:
            model = PeftModel.from_pretrained(model, str(weights), is_trainable=trainable)
        except (RuntimeError, ValueError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise PolicyError(f"cannot load the adapter {weights} on {source}: {reason}") from error
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
    model.train(trainable)  # dropout and gradient checkpointing need training mode
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.to(device)
    # Trained weights are float32, adapters included (peft); without autocast an adapter would compute in float32.
    autocast = dtype if trainable and dtype.itemsize == 2 else None
    return Policy(model, tokenizer, device, recorded_base(source, root), autocast)


def _pinned(resolved: str) -> str:
    """A hub id pinned to its commit, or a directory unchanged."""
    if Path(resolved).is_dir():
        return resolved
    name, commit = hub_id(resolved)
    commit = commit or hub_commit(name)
    found = f"{name}@{commit}" if commit else name
    if os.environ.get("RANK", "0") == "0":
        print(f"loading {found} (downloaded first if it is not in the cache)", flush=True)
    return found


def _from_hub(load: Callable[..., tuple[Any, Any]], name: str, commit: str) -> tuple[Any, Any]:
    """Load from the hub; where it is down or no longer has the commit, from this machine's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    # The hub client retries for 50 s before it uses the cache.
    cache_first = not hub_answers(name, commit=commit)
    hub_error: Exception | None = None
    for from_cache in (cache_first, not cache_first):
        try:
            with downloading(Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"):
                return load(name, revision=commit, local_files_only=from_cache)
        except (OSError, ValueError) as error:
            hub_error = hub_error if from_cache else error
    assert hub_error is not None
    raise hub_error


def _load(source: str, dtype: torch.dtype, attention: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # the console log is a file
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # caused by peft

    def load(name: str, **options: Any) -> tuple[Any, Any]:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation=attention, **options)
        return model, AutoTokenizer.from_pretrained(name, **options)

    name, commit = (source, None) if Path(source).is_dir() else hub_id(source)
    try:
        model, tokenizer = _from_hub(load, name, commit) if commit else load(name)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        hint = (
            "set model.attention: eager"
            if "attn_implementation" in reason
            else "a directory needs config.json, weights and a tokenizer; a hub model needs the network or its cache"
        )
        raise PolicyError(f"cannot load the model '{source}': {reason} ({hint})") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False  # Llama's default; completions are graded as generated
    return model, tokenizer
