"""What an export writes, and where: the step, its base model and the destination, checked before a model is loaded.

Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.config import load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.platforms.hub_models import hub_api, model_config
from grpo_train.policy.locate import (
    adapter_of,
    check_base,
    hub_commit,
    hub_id,
    hub_source,
    resolve_backbone,
    weight_files,
)
from grpo_train.run_dir import RunDir, RunDirError, open_run, resolve_root
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json


class ExportError(UserError):
    """A model that cannot be exported or pushed."""

    code = "bad_export"


@dataclass(frozen=True)
class ExportRequest:
    """The arguments of ``grpo-train export``."""

    training_run: str
    step: str = "final"
    merge: bool = False
    dtype: str | None = None
    to: Path | None = None
    base: str | None = None
    root: Path | None = None


@dataclass(frozen=True)
class ExportPlan:
    """A checked request."""

    run: RunDir
    config: Config
    step: int
    weights: Path
    """The checkpoint's model directory."""
    info: dict[str, Any]
    """Its ``training_info.json``."""
    is_adapter: bool
    """Whether an adapter is written, not all weights."""
    is_trained_adapter: bool
    """Whether the checkpoint holds an adapter."""
    dtype: str | None
    """None = as stored (adapters)."""
    base: str
    """The model under the adapter, as :func:`~grpo_train.policy.loading.load_policy` takes it; "" for full weights."""
    base_name: str
    """Hub ID of the model that training started from; "" if unknown."""
    base_commit: str | None
    to: Path

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the content of the export, as its ``export.json`` has it."""
        return {
            "training_run": self.run.name,
            "step": self.step,
            "adapter": self.is_adapter,
            "dtype": self.dtype,
            "base_model": {"name": self.base_name, "commit": self.base_commit},
        }


def plan_export(request: ExportRequest) -> ExportPlan:
    """Check a request. Raises ExportError, RunDirError (a damaged step by name), ConfigError, PolicyError."""
    run = open_run(resolve_root(request.root), request.training_run)
    if not run.config_file.exists():
        raise RunDirError(f"{run.name} has no config.yaml because it never started")
    config = load_config(read_config_text(run.config_file), source=str(run.config_file))
    checkpoint = run.checkpoint(request.step, deep=True, hint="export it with --step {step}")
    weights, info = checkpoint.path / "model", read_json(checkpoint.path / "training_info.json") or {}
    is_trained_adapter = adapter_of(weights) == "lora"
    is_adapter = is_trained_adapter and not request.merge
    recorded = str((info.get("base_model") or {}).get("name") or config.model.backbone)
    base = resolve_backbone(request.base or recorded, run.root) if is_trained_adapter else ""
    if is_trained_adapter:
        check_base(weights, base, run.root)
        if request.base and not Path(base).is_dir():
            _check_hub_base(base, str((info.get("base_model") or {}).get("weights_sha256") or ""))
    name, commit = _hub_name(base or recorded, run.root)
    if is_adapter and not name:
        raise ExportError(
            f"the base model of {run.name} is a directory of this machine ({recorded}), not a hub model; "
            "export the merged model (--merge), or name the same model on the hub (--base OWNER/NAME@COMMIT)"
        )
    suffix = "_merged" if is_trained_adapter and request.merge else ""
    to = request.to or run.root / "exports" / f"{run.name}_step_{checkpoint.step}{suffix}"
    return ExportPlan(
        run=run,
        config=config,
        step=checkpoint.step,
        weights=weights,
        info=info,
        is_adapter=is_adapter,
        is_trained_adapter=is_trained_adapter,
        dtype=request.dtype or (None if is_adapter else _dtype_of(base or recorded, run.root)),
        base=base,
        base_name=name,
        base_commit=commit,
        to=to.expanduser().absolute(),
    )


def _check_hub_base(base: str, expected: str) -> None:
    """Raise ExportError unless the weights of a hub model have these checksums ("" = not recorded)."""
    if not expected:
        return
    name, commit = hub_id(base)
    try:
        files = hub_api().model_info(name, revision=commit, files_metadata=True).siblings or []
    except Exception as error:  # the hub's client and the HTTP client below it raise many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExportError(f"--base {base} cannot be compared with the base model of the run: {reason}") from error
    hashes = {file.rfilename: file.lfs.sha256 if file.lfs else "" for file in files}
    of_torch = [name for name in hashes if not name.endswith(".safetensors")]
    if all(",".join(hashes[name] for name in weight_files(names)) != expected for names in (hashes, of_torch)):
        raise ExportError(f"--base {base} has other weights than the model that the adapter was trained on")


def _hub_name(source: str, root: Path) -> tuple[str, str | None]:
    """Hub ID and commit of a model; ("", None) if they are not known.

    Of weights that another run trained, those of the model that run started from.
    """
    for _ in range(10):
        try:
            resolved = resolve_backbone(source, root)
        except UserError:  # it is not on this machine any more
            return "", None
        folder = Path(resolved)
        if not folder.is_dir():
            name, commit = hub_id(resolved)
            return name, commit or hub_commit(name)
        if found := hub_source(folder):
            return hub_id(found)
        info = read_json((folder.parent if folder.name == "model" else folder) / "training_info.json") or {}
        source = str((info.get("base_model") or {}).get("name") or "")
        if not source:
            break
    return "", None


def _dtype_of(base: str, root: Path) -> str:
    """Default type of exported weights: float32 for a base model of float32, else bfloat16."""
    try:
        file = model_config(resolve_backbone(base, root))
    except UserError:  # a model that is not on this machine any more
        return "bfloat16"
    facts = (read_json(file) if file else None) or {}
    return "float32" if (facts.get("dtype") or facts.get("torch_dtype")) == "float32" else "bfloat16"
