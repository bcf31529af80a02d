"""What the face asks of a box: the parameters of each operation, in one place. No Textual, no sockets."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any


def new_key() -> str:
    """An idempotency key: a launch repeated with it (a double Enter, a broken link) starts nothing twice."""
    return secrets.token_hex(12)


def _chosen(**fields: Any) -> dict[str, Any]:
    """The fields that were filled in; the box has its own defaults for the others."""
    return {name: value for name, value in fields.items() if value not in ("", None)}


@dataclass(frozen=True)
class LaunchOrder:
    """What the launch form asks for."""

    config_text: str
    config_name: str = ""
    ckpt: str = ""
    nproc: int | None = None
    overrides: tuple[str, ...] = ()
    run_name: str = ""
    idempotency_key: str = field(default_factory=new_key, compare=False)

    op = "launch"

    def params(self, dry_run: bool) -> dict[str, Any]:
        return {
            "config_text": self.config_text,
            "config_name": self.config_name,
            "overrides": list(self.overrides),
            "idempotency_key": self.idempotency_key,
            **_chosen(ckpt=self.ckpt, nproc=self.nproc, run_name=self.run_name),
            "dry_run": dry_run,
        }


@dataclass(frozen=True)
class EvalOrder:
    """What the evaluation form asks for."""

    run: str
    steps: str = "latest"
    """``latest``, ``final``, ``all`` or ``1,5,10``."""
    dataset: str = ""
    path: str = ""
    """The dataset's file or directory on the box."""
    subset_frac: float | None = None
    num_samples: int | None = None
    temperature: float | None = None

    op = "evaluate"

    def params(self, dry_run: bool) -> dict[str, Any]:
        chosen = _chosen(
            eval_dataset=self.dataset,
            eval_path=self.path,
            subset_frac=self.subset_frac,
            num_samples=self.num_samples,
            temperature=self.temperature,
        )
        return {"run": self.run, "steps": self.steps, **chosen, "dry_run": dry_run}


@dataclass(frozen=True)
class ResumeOrder:
    """What the resume form asks for."""

    run: str
    from_step: str = "latest"
    additional_steps: int | None = None

    op = "resume"

    def params(self, dry_run: bool) -> dict[str, Any]:
        chosen = _chosen(additional_steps=self.additional_steps)
        return {"run": self.run, "from_step": self.from_step, **chosen, "dry_run": dry_run}


Order = LaunchOrder | EvalOrder | ResumeOrder
