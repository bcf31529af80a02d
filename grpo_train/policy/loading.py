"""From a name in the config to a model on a device: backbones, adapters, checkpoints, and back to files."""

from __future__ import annotations

import difflib
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_train.config import BACKBONES, Model
from grpo_train.files import read_json
from grpo_train.run_dir import sha256


class PolicyError(Exception):
    """A model that cannot be loaded as asked; says what, where and the way out."""


@dataclass
class Policy:
    """A model with its tokenizer, and how it computes."""

    model: Any
    tokenizer: Any
    device: torch.device
    base: str
    """Where the weights under the adapter (or the first full weights) came from: a hub id, a path relative to the
    root, or an absolute path outside it."""
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
            adapter.base_model_name_or_path = self.base  # never an absolute path: a moved root must still work
        self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)


def resolve_backbone(name: str, root: Path) -> str:
    """A directory, or a hub id, for ``model.backbone`` (or a recorded base).

    Raises PolicyError for a name that is neither, with the nearest known one.
    """
    target = BACKBONES.get(name, name)
    for candidate in (root / target, Path(target).expanduser()):
        if (candidate / "config.json").is_file():
            return str(candidate)
    if name == "tiny":
        raise PolicyError(
            f"no tiny model at {root / target}: make it with  grpo-train tiny-model --out {root / target}"
        )
    if target.count("/") == 1 and not target.startswith((".", "/", "~")) and not (root / target).exists():
        return target
    near = difflib.get_close_matches(name, BACKBONES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else f"; short names: {', '.join(BACKBONES)}"
    raise PolicyError(
        f"model.backbone '{name}' is no model directory (with a config.json), hub name or short name{hint}"
    )


def recorded_base(resolved: str, root: Path) -> str:
    """A resolved backbone as checkpoints record it: relative to the root where it lies in it."""
    path = Path(resolved)
    return str(path.relative_to(root)) if path.is_absolute() and path.is_relative_to(root) else resolved


def weight_hash(resolved: str) -> str:
    """SHA-256 over the hashes of a local model's safetensors files; "" for a hub id."""
    files = sorted(Path(resolved).glob("*.safetensors")) if Path(resolved).is_dir() else []
    if len(files) == 1:
        return sha256(files[0])
    return ",".join(sha256(file) for file in files)


def pick_device(local_rank: int = 0) -> torch.device:
    """This process's device: the GPU of its local rank, or the CPU."""
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def adapter_of(folder: Path) -> str | None:
    """ "lora" for a peft adapter directory, "none" for a full model's, None for neither."""
    if (folder / "adapter_config.json").is_file():
        return "lora"
    return "none" if (folder / "config.json").is_file() else None


def model_folder(ckpt: Path) -> Path:
    """The model directory of a ``--ckpt`` argument: the directory itself, or its ``model/``."""
    for folder in (ckpt, ckpt / "model"):
        if adapter_of(folder):
            return folder
    raise PolicyError(
        f"{ckpt} holds neither a peft adapter (adapter_config.json) nor a model (config.json); "
        "give a model directory or a step_N directory of a run"
    )


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
        resolved, source = str(weights), str(weights)
    else:
        resolved = source = resolve_backbone(base or settings.backbone, root)
    on_gpu = device.type == "cuda"
    wants_master = trainable and settings.adapter == "none"
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(
        settings.dtype, torch.bfloat16 if on_gpu else torch.float32
    )
    model, tokenizer = _load(source, torch.float32 if wants_master else dtype, settings.attention)
    if kind == "lora":
        from peft import PeftModel

        assert weights is not None
        _refuse_other_base(weights, source)
        model = PeftModel.from_pretrained(model, str(weights), is_trainable=trainable)
    elif settings.adapter == "lora" and trainable:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model,
            LoraConfig(
                r=settings.lora_rank,
                lora_alpha=settings.lora_alpha,
                lora_dropout=settings.lora_dropout,
                target_modules=settings.lora_targets,
                task_type="CAUSAL_LM",
            ),
        )
    if not trainable:
        model.requires_grad_(False)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.to(device)
    recorded = recorded_base(resolved, root)
    autocast = torch.bfloat16 if wants_master and dtype == torch.bfloat16 else None
    return Policy(model, tokenizer, device, recorded, autocast)


def _load(source: str, dtype: torch.dtype, attention: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # the console log is a file
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # about peft's use of it
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation=attention)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise PolicyError(
            f"cannot load the model '{source}': {first_line} (a directory must hold config.json, weights and a "
            "tokenizer; a hub name needs the network or a filled cache)"
        ) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _refuse_other_base(adapter: Path, source: str) -> None:
    """An adapter trained on one base and loaded on another gives noise: compare the recorded weight hashes."""
    info = read_json(adapter.parent / "training_info.json") or {}
    wanted = (info.get("base_model") or {}).get("weights_sha256", "")
    if wanted and (found := weight_hash(source)) and found != wanted:
        raise PolicyError(
            f"the adapter {adapter} was trained on {info['base_model'].get('name')} with other weights than {source} "
            "holds now (SHA-256 differs): set model.backbone (or --base) to the model it was trained on"
        )
