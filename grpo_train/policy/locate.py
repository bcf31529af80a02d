"""Finding and checking models: names, directories, adapters and the base each was trained on. Torch-free."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from grpo_train.run_dir import sha256
from grpo_train.run_dir.errors import UserError, did_you_mean
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.manifest import weights_problem
from grpo_train.run_dir.safe_json import Unreadable, read_object

BACKBONES = {
    "tiny": "models/tiny",
    "qwen2_5_05": "Qwen/Qwen2.5-0.5B",
    "qwen2_5_15": "Qwen/Qwen2.5-1.5B",
    "qwen2_5_3": "Qwen/Qwen2.5-3B",
    "qwen2_5_05_instruct": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2_5_15_instruct": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2_5_3_instruct": "Qwen/Qwen2.5-3B-Instruct",
}
"""Short names for ``model.backbone``: a hub ID, or a directory relative to the root."""
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
"""Files that hold a tokenizer's vocabulary."""


HUB_SOURCE = ".hub.json"
"""File of a downloaded model that names its repository and commit."""


class PolicyError(UserError):
    """A model that cannot be used; the message names the file or key and the fix."""

    code = "bad_model"


def resolve_backbone(name: str, root: Path) -> str:
    """Directory or hub id (``OWNER/NAME`` or ``OWNER/NAME@COMMIT``) of ``model.backbone`` or a recorded base.

    Raises PolicyError for a name that is neither, with the nearest known name.
    """
    target = BACKBONES.get(name, name)
    for candidate in (root / target, Path(target).expanduser()):
        if os.path.lexists(candidate / "config.json"):
            return str(candidate)
    if name == "tiny":
        raise PolicyError(
            f"no tiny model at {root / target}: it has no config.json; create it with "
            f"grpo-train tiny-model --out {root / target}"
        )
    if _is_hub_id(target, root):
        return target
    hint = did_you_mean(name, BACKBONES, otherwise="short names")
    raise PolicyError(
        f"model.backbone '{name}' is not a model directory (with a config.json), hub name or short name; {hint}"
    )


def recorded_base(resolved: str, root: Path) -> str:
    """A resolved backbone as checkpoints record it: relative to the root where it is inside."""
    path = Path(resolved)
    return str(path.relative_to(root)) if path.is_absolute() and path.is_relative_to(root) else resolved


def weight_hash(resolved: str) -> str:
    """SHA-256 of each file of a local model's weights, joined by commas; "" for a hub id."""
    folder = Path(resolved)
    found = weight_files(file.name for file in folder.iterdir()) if folder.is_dir() else []
    return ",".join(sha256(folder / name) for name in found)


def weight_files(names: Iterable[str]) -> list[str]:
    """The names of a model's files that transformers reads weights from, sorted: safetensors, else PyTorch's."""
    every = sorted(names)
    tensors = [name for name in every if fnmatch(name, "*.safetensors")]
    return tensors or [name for name in every if fnmatch(name, "pytorch_model*.bin")]


def adapter_of(folder: Path) -> str | None:
    """ "lora" for a peft adapter directory, "none" for a full model, None for neither."""
    if (folder / "adapter_config.json").is_file():
        return "lora"
    return "none" if (folder / "config.json").is_file() else None


def model_folder(ckpt: Path) -> Path:
    """Model directory of a ``--ckpt`` argument: the directory itself, or its ``model/``. Raises PolicyError."""
    for folder in (ckpt, ckpt / "model"):
        if adapter_of(folder):
            return folder
    raise PolicyError(
        f"{ckpt} holds neither a peft adapter (adapter_config.json) nor a model (config.json); "
        "use a model directory or a step_N directory of a run"
    )


def base_of_checkpoint(checkpoint: Path, root: Path) -> str | None:
    """Base model recorded by a ``step_N``; None where it no longer exists (callers fall back to the backbone)."""
    info = read_json(checkpoint / "training_info.json") or {}
    recorded = str((info.get("base_model") or {}).get("name") or "")
    try:
        return recorded if recorded and resolve_backbone(recorded, root) else None
    except PolicyError:
        return None


def check_weights(path: Path, adapter: str | None = None) -> Path:
    """Model directory of a ``--ckpt`` or ``--ckpt-path``, with checksums verified where it has a manifest.

    Raises PolicyError when it is missing or damaged (the message names the newest complete step beside it), or when it
    is an adapter and ``model.adapter`` is ``none``.
    """
    checkpoint = path.parent if path.name == "model" else path
    if reason := weights_problem(checkpoint):
        raise PolicyError(f"checkpoint {checkpoint} cannot be used: {reason}", code="bad_checkpoint")
    folder = model_folder(path)
    if adapter == "none" and adapter_of(folder) == "lora":
        raise PolicyError(
            f"{folder} holds a LoRA adapter but model.adapter is 'none'; set model.adapter: lora to continue it, "
            "or start from a full model"
        )
    return folder


def check_files(folder: Path) -> None:
    """Raise PolicyError when a model or adapter directory lacks files, or its config is unreadable; a hub id passes.

    Without its vocabulary a tokenizer loads empty, and training would fail much later.
    """
    if not folder.is_dir():
        return
    check_configs(folder)
    weights = ("adapter_model.*",) if adapter_of(folder) == "lora" else ("*.safetensors", "pytorch_model*.bin")
    if not _holds(folder, weights):
        raise PolicyError(f"{folder} holds no weights ({' or '.join(weights)}); copy them there")
    for index in folder.glob("*.index.json"):
        shards = set(((read_json(index) or {}).get("weight_map") or {}).values())
        if missing := sorted(shard for shard in shards if not (folder / shard).is_file()):
            raise PolicyError(f"{folder} lacks {missing[0]}, which {index.name} lists; copy it there")
    if adapter_of(folder) == "none" and not _holds(folder, VOCABULARIES):
        raise PolicyError(
            f"{folder} holds no tokenizer (tokenizer.json or a vocabulary); copy the tokenizer of its base model there"
        )


def check_configs(folder: Path) -> None:
    """Raise PolicyError when the config of a model or adapter directory is unreadable: libraries load without it."""
    for name in ("adapter_config.json", "config.json"):
        try:
            read_object(folder / name)
        except (Unreadable, OSError) as error:
            raise PolicyError(f"{folder / name} cannot be read ({error}); copy the model there again") from error


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Tokens that a model (its ``config.json``) has positions for; None where it has no limit or does not name it.

    Scaled rotary positions count as vLLM counts them (``_get_and_verify_max_len``).
    """
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    if not isinstance(limit, int) or limit <= 0 or config.get("alibi"):
        return None
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        return limit
    factor, kind = rope.get("factor"), rope.get("rope_type") or rope.get("type")
    if isinstance(factor, int | float) and kind not in ("llama3", "longrope", "su"):
        limit = max(limit, int(factor * (rope.get("original_max_position_embeddings") or limit)))
    return limit


def check_positions(model: str, config: Mapping[str, Any], prompt: int, completion: int, keys: tuple[str, str]) -> None:
    """Raise PolicyError if a prompt and a completion of these lengths exceed the positions of a model.

    Args:
        config: its ``config.json``.
        keys: what sets each of the two lengths.
    """
    limit = positions_of(config)
    if limit and prompt + completion > limit:
        raise PolicyError(
            f"{keys[0]} ({prompt}) and {keys[1]} ({completion}) are {prompt + completion} tokens together, and the "
            f"model {model} has {limit} positions; lower one of them",
            code="bad_config",
        )


def check_base(adapter: Path, base: str, root: Path) -> None:
    """Raise PolicyError when ``base`` is not the model that an adapter was trained on: its output would be noise.

    Compares weight hashes where recorded, else hub names. ``base`` is a resolved backbone.
    """
    recorded = (read_json(adapter.parent / "training_info.json") or {}).get("base_model") or {}
    wanted, found = recorded.get("weights_sha256"), weight_hash(base)
    if wanted and found:
        if wanted != found:
            raise PolicyError(
                f"the adapter {adapter} was trained on {recorded.get('name')}, whose weights differ from {base} "
                "(SHA-256); set model.backbone (or --base) to the model it was trained on"
            )
        return
    config = read_json(adapter / "adapter_config.json") or {}
    name = str(recorded.get("name") or config.get("base_model_name_or_path") or "")
    if _is_hub_id(name, root) and _is_hub_id(base, root) and not _same_model(name, base):
        raise PolicyError(
            f"the adapter {adapter} was trained on {name}, not on {base}; "
            "set model.backbone (or --base) to the model it was trained on"
        )


def hub_id(name: str) -> tuple[str, str | None]:
    """Split ``OWNER/NAME@COMMIT`` into name and commit; (name, None) without a commit."""
    match = re.fullmatch(r"([^/@]+/[^/@]+)@([0-9a-f]{40})", name)
    return (match[1], match[2]) if match else (name, None)


def hub_source(folder: Path) -> str | None:
    """``OWNER/NAME@COMMIT`` of a directory that ``grpo-train fetch-model`` downloaded; None for others."""
    found = (read_json(folder / HUB_SOURCE) or {}).get("model")
    return found if isinstance(found, str) and hub_id(found)[1] else None


def hub_commit(repository: str, revision: str | None = None) -> str | None:
    """Commit of ``OWNER/NAME`` (default: the newest) on the hub, or in the cache where the hub does not answer.

    Its ``config.json`` is in the cache then.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, "config.json", revision=revision)).parent.name
    except Exception:  # network, hub or gated model: loading the model reports it better
        return None


def at_commit(backbone: str, recorded: str | None) -> str:
    """``model.backbone``, pinned to the hub commit recorded by a checkpoint of the same model."""
    name, commit = hub_id(recorded or "")
    return recorded if recorded and commit and name == BACKBONES.get(backbone, backbone) else backbone


def _holds(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def _same_model(one: str, other: str) -> bool:
    (name, commit), (other_name, other_commit) = hub_id(one), hub_id(other)
    return name == other_name and (commit == other_commit or not (commit and other_commit))


def _is_hub_id(name: str, root: Path) -> bool:
    name = hub_id(name)[0]
    local = name.startswith(("/", ".", "~")) or (root / name).exists() or Path(name).exists()
    return name.count("/") == 1 and not local
