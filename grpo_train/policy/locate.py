"""Where models lie: names, directories, adapters and the base each was trained on. Torch-free."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from grpo_train.config.schema import BACKBONES
from grpo_train.run_dir import sha256
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.manifest import weights_problem


class PolicyError(UserError):
    """A model that cannot be loaded as asked; says what, where and the way out."""

    code = "bad_model"


def resolve_backbone(name: str, root: Path) -> str:
    """A directory, or a hub id (``OWNER/NAME`` or ``OWNER/NAME@COMMIT``), for ``model.backbone`` or a recorded base.

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
    if _is_hub_id(target, root):
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


def base_of_checkpoint(checkpoint: Path, root: Path) -> str | None:
    """The base model that a ``step_N`` recorded, where it is still found; None where not: the backbone is tried."""
    info = read_json(checkpoint / "training_info.json") or {}
    recorded = str((info.get("base_model") or {}).get("name") or "")
    try:
        return recorded if recorded and resolve_backbone(recorded, root) else None
    except PolicyError:
        return None


def check_weights(path: Path, adapter: str | None = None) -> Path:
    """The model directory of a ``--ckpt`` or ``--ckpt-path``, its checksums verified where it has a manifest.

    Raises PolicyError when there is none, it is damaged (the message names the newest complete step beside it), or it
    is an adapter and ``model.adapter`` is ``none``.
    """
    checkpoint = path.parent if path.name == "model" else path
    if reason := weights_problem(checkpoint):
        raise PolicyError(f"checkpoint {checkpoint} cannot be used: {reason}")
    folder = model_folder(path)
    if adapter == "none" and adapter_of(folder) == "lora":
        raise PolicyError(
            f"{folder} holds a LoRA adapter but model.adapter is 'none': set model.adapter: lora to train it on, "
            "or start from a full model"
        )
    return folder


def check_base(adapter: Path, base: str, root: Path) -> None:
    """An adapter on another base than its own gives noise: compare weight hashes where recorded, else hub names.

    Raises PolicyError when they differ. ``base`` is a resolved backbone.
    """
    recorded = (read_json(adapter.parent / "training_info.json") or {}).get("base_model") or {}
    wanted, found = recorded.get("weights_sha256"), weight_hash(base)
    if wanted and found:
        if wanted != found:
            raise PolicyError(
                f"the adapter {adapter} was trained on {recorded.get('name')} with other weights than {base} "
                "holds (SHA-256 differs): set model.backbone (or --base) to the model it was trained on"
            )
        return
    config = read_json(adapter / "adapter_config.json") or {}
    name = str(recorded.get("name") or config.get("base_model_name_or_path") or "")
    if _is_hub_id(name, root) and _is_hub_id(base, root) and not _same_model(name, base):
        raise PolicyError(
            f"the adapter {adapter} was trained on {name}, not on {base}: "
            "set model.backbone (or --base) to the model it was trained on"
        )


def hub_id(name: str) -> tuple[str, str | None]:
    """The two parts of ``OWNER/NAME@COMMIT``; what has no commit behind it is left whole, with None."""
    match = re.fullmatch(r"([^/@]+/[^/@]+)@([0-9a-f]{40})", name)
    return (match[1], match[2]) if match else (name, None)


def hub_commit(repository: str) -> str | None:
    """The commit that the hub has now of ``OWNER/NAME``, or its cache on this machine where the hub does not answer."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, "config.json")).parent.name
    except Exception:  # the network, the hub, a gate: loading the model will say it better
        return None


def at_commit(backbone: str, recorded: str | None) -> str:
    """``model.backbone``, at the hub's commit that a checkpoint recorded where that is of the same model."""
    name, commit = hub_id(recorded or "")
    return recorded if recorded and commit and name == BACKBONES.get(backbone, backbone) else backbone


def _same_model(one: str, other: str) -> bool:
    (name, commit), (other_name, other_commit) = hub_id(one), hub_id(other)
    return name == other_name and (commit == other_commit or not (commit and other_commit))


def _is_hub_id(name: str, root: Path) -> bool:
    name = hub_id(name)[0]
    local = name.startswith(("/", ".", "~")) or (root / name).exists() or Path(name).exists()
    return name.count("/") == 1 and not local
