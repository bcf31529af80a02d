"""What the face asks of a box: the parameters of each operation, in one place. No Textual, no sockets."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any


def new_key() -> str:
    """An idempotency key: a launch repeated with it (a double Enter, a broken link) starts nothing twice."""
    return secrets.token_hex(12)


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
        chosen: dict[str, Any] = {
            "config_text": self.config_text,
            "config_name": self.config_name,
            "overrides": list(self.overrides),
            "idempotency_key": self.idempotency_key,
        }
        if self.ckpt:
            chosen["ckpt"] = self.ckpt
        if self.nproc is not None:
            chosen["nproc"] = self.nproc
        if self.run_name:
            chosen["run_name"] = self.run_name
        return {**chosen, "dry_run": dry_run}


@dataclass(frozen=True)
class EvalOrder:
    """What the evaluation form asks for."""

    run: str
    steps: str = "latest"
    """``latest``, ``final``, ``all`` or ``1,5,10``."""
    dataset: str = ""
    subset_frac: float | None = None

    op = "evaluate"

    def params(self, dry_run: bool) -> dict[str, Any]:
        chosen: dict[str, Any] = {"run": self.run, "steps": self.steps}
        if self.dataset:
            chosen["eval_dataset"] = self.dataset
        if self.subset_frac is not None:
            chosen["subset_frac"] = self.subset_frac
        return {**chosen, "dry_run": dry_run}


@dataclass(frozen=True)
class ResumeOrder:
    """What the resume form asks for."""

    run: str
    from_step: str = "latest"
    additional_steps: int | None = None

    op = "resume"

    def params(self, dry_run: bool) -> dict[str, Any]:
        chosen: dict[str, Any] = {"run": self.run, "from_step": self.from_step}
        if self.additional_steps is not None:
            chosen["additional_steps"] = self.additional_steps
        return {**chosen, "dry_run": dry_run}


Order = LaunchOrder | EvalOrder | ResumeOrder


def with_new_key(order: LaunchOrder) -> LaunchOrder:
    """The same launch, meant as another one."""
    return replace(order, idempotency_key=new_key())
