"""What the forms send: the parameters of each operation, in one place. No Textual, no sockets."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any


def new_idempotency_key() -> str:
    """A key that makes a repeated launch (a double Enter, a broken link) a no-op."""
    return secrets.token_hex(12)


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that were filled in; the box has defaults for the others."""
    return {name: value for name, value in fields.items() if value not in ("", None, [])}


@dataclass(frozen=True)
class LaunchRequest:
    """Request of the launch form."""

    config_text: str
    config_name: str = ""
    ckpt: str = ""
    """Starting weights: a path on the box, absolute or relative to its root."""
    nproc: int | None = None
    overrides: tuple[str, ...] = ()
    run_name: str = ""
    idempotency_key: str = field(default_factory=new_idempotency_key, compare=False)

    op = "launch"

    def params(self, dry_run: bool) -> dict[str, Any]:
        return {
            "config_text": self.config_text,
            "config_name": self.config_name,
            "overrides": list(self.overrides),
            "idempotency_key": self.idempotency_key,
            **_given(ckpt=self.ckpt, nproc=self.nproc, run_name=self.run_name),
            "dry_run": dry_run,
        }


@dataclass(frozen=True)
class EvalRequest:
    """Request of the evaluation form."""

    run: str
    steps: str = "latest"
    """``latest``, ``final``, ``all`` or ``1,5,10``."""
    dataset: str = ""
    path: str = ""
    """File or directory of the dataset on the box."""
    subset_frac: float | None = None
    num_samples: int | None = None
    temperature: float | None = None

    op = "evaluate"

    def params(self, dry_run: bool) -> dict[str, Any]:
        given = _given(
            eval_dataset=self.dataset,
            eval_path=self.path,
            subset_frac=self.subset_frac,
            num_samples=self.num_samples,
            temperature=self.temperature,
        )
        return {"run": self.run, "steps": self.steps, **given, "dry_run": dry_run}


@dataclass(frozen=True)
class ResumeRequest:
    """Request of the resume form."""

    run: str
    from_step: str = "latest"
    additional_steps: int | None = None
    nproc: int | None = None
    overrides: tuple[str, ...] = ()

    op = "resume"

    def params(self, dry_run: bool) -> dict[str, Any]:
        given = _given(additional_steps=self.additional_steps, nproc=self.nproc, overrides=list(self.overrides))
        return {"run": self.run, "from_step": self.from_step, **given, "dry_run": dry_run}


Request = LaunchRequest | EvalRequest | ResumeRequest
