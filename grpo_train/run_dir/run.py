"""One run on disk: paths, stop file, checkpoints and logs. Standard library only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import (
    ByteRange,
    append_jsonl,
    atomic_symlink,
    atomic_write,
    close_torn_line,
    fsync_path,
    last_jsonl,
    parse_time,
    read_json,
    read_jsonl,
    to_float,
    to_json,
    utc_from,
    utc_now,
)
from grpo_train.run_dir.formats import current_row
from grpo_train.run_dir.manifest import STEP_NAME, Checkpoint, list_checkpoints, newest_complete, problem_of
from grpo_train.run_dir.status import FRESH_S, ObservedState, RunDirError, observe

SUPERSEDED_LOGS = ("train_log.jsonl", "rollouts.jsonl", "ratios.jsonl")


@dataclass(frozen=True)
class RunDir:
    """Directory of one training run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def root(self) -> Path:
        return self.path.parent.parent

    @property
    def launch_file(self) -> Path:
        return self.path / "launch.json"

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def status_file(self) -> Path:
        return self.path / "status.json"

    @property
    def stop_file(self) -> Path:
        return self.path / "control" / "stop"

    @property
    def training_state(self) -> Path:
        return self.path / "training_state"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def events_file(self) -> Path:
        return self.logs / "events.jsonl"

    def log_event(self, event: str, **fields: Any) -> None:
        """Append to ``logs/events.jsonl``; ``step`` defaults to the last logged step."""
        step = fields.pop("step", None)
        if step is None:
            step = self.last_step_row().get("step", 0)
        append_jsonl(self.events_file, {"step": step, "time": utc_now(), "event": event, **fields})

    # control -------------------------------------------------------------------------------------------

    def request_stop(self, by: str) -> None:
        """Request a stop after the current step (the first rung of the stop ladder)."""
        self.stop_file.parent.mkdir(exist_ok=True)
        if not self.stop_file.exists():
            atomic_write(self.stop_file, to_json({"time": utc_now(), "by": by}) + "\n")
            self.log_event("stop_asked", by=by)

    def stop_requested(self) -> bool:
        return self.stop_file.exists()

    def clear_stop(self) -> None:
        self.stop_file.unlink(missing_ok=True)

    # checkpoints ---------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Every ``step_N`` in order of N, without aliases."""
        return list_checkpoints(self.training_state)

    def newest_step(self) -> int:
        """Step of the newest complete checkpoint; 0 without one."""
        return max((c.step for c in self.checkpoints() if not c.problem), default=0)

    def checkpoint(
        self, which: str | int, *, deep: bool = False, hint: str = "resume with --from-step {step}"
    ) -> Checkpoint:
        """The complete checkpoint ``latest``, ``final`` or N; ``deep`` also verifies every checksum.

        Raises RunDirError (``no_checkpoint``, ``bad_checkpoint``) naming the missing or damaged file, the other
        complete steps, and the ``hint`` for the newest of them with correct checksums.
        """
        text = str(which)
        if text.isascii() and text.isdigit():
            found = next((c for c in self.checkpoints() if c.step == int(text)), None)
        elif text in ("latest", "final"):
            found = self._alias(text)
        else:
            raise RunDirError(f"'{text}' is not a checkpoint; use latest, final or a step number", code="no_checkpoint")
        if found:
            problem = found.problem or (problem_of(found.path, deep=True) if deep else "")
            if not problem:
                return found
        complete = [c for c in self.checkpoints() if not c.problem and c != found]
        alias = self.training_state / f"step_{text}"
        if not found and not alias.is_symlink():
            steps = ", ".join(str(c.step) for c in complete)
            have = f"complete steps: {steps}" if steps else "no complete steps"
            raise RunDirError(f"{self.name} has no checkpoint step_{text} ({have})", code="no_checkpoint")
        newest = newest_complete(complete)
        others = ", ".join(str(c.step) for c in complete if newest and c.step <= newest.step)
        have = "no other complete steps"
        if newest:
            have = f"other complete steps: {others}; newest complete: step_{newest.step}; "
            have += hint.format(step=newest.step)
        if not found:
            missing = f"{alias} points to {os.readlink(alias)}, which does not exist"
            raise RunDirError(f"{missing} ({have})", code="bad_checkpoint")
        raise RunDirError(f"checkpoint {found.path} cannot be used: {problem} ({have})", code="bad_checkpoint")

    def resume_point(self) -> Checkpoint | None:
        """The checkpoint to continue from, every checksum verified; None for a run without checkpoints.

        Raises RunDirError like :meth:`checkpoint`, also for a ``step_latest`` that points to a missing step.
        """
        if not self.checkpoints() and not (self.training_state / "step_latest").is_symlink():
            return None
        return self.checkpoint("latest", deep=True)

    def _alias(self, name: str) -> Checkpoint | None:
        """The checkpoint behind ``step_latest`` or ``step_final``."""
        alias, known = self.training_state / f"step_{name}", self.checkpoints()
        complete = [c for c in known if not c.problem] if name == "latest" else []
        newest = complete[-1] if complete else None
        if alias.is_symlink():
            match = STEP_NAME.fullmatch(os.path.basename(os.readlink(alias)))
            found = next((c for c in known if match and c.step == int(match[1])), None)
            # A kill between renaming a checkpoint and moving the link leaves the link one behind.
            return newest if found and newest and newest.step > found.step else found
        if alias.is_dir():  # older layout
            info = read_json(alias / "training_info.json") or {}
            return Checkpoint(int(to_float(info.get("step")) or 0), alias, problem_of(alias))
        return newest

    # reading -------------------------------------------------------------------------------------------

    def read_launch(self) -> dict[str, Any]:
        return read_json(self.launch_file) or {}

    def read_status(self) -> dict[str, Any] | None:
        return read_json(self.status_file)

    def observed_state(self) -> ObservedState:
        status = self.read_status()
        if status is not None:
            return observe(status)
        created = parse_time(str(self.read_launch().get("time", "1970-01-01T00:00:00Z")))
        return ObservedState("starting" if time.time() - created < FRESH_S else "lost")

    def superseded(self) -> dict[str, list[ByteRange]]:
        """Byte ranges of each log that a resume from an earlier step superseded."""
        ranges: dict[str, list[ByteRange]] = {}
        for _, event in read_jsonl(self.events_file):
            for file, (start, end) in (event.get("superseded") or {}).items():
                ranges.setdefault(file, []).append((int(start), int(end)))
        return ranges

    def read_log(self, file: str) -> Iterator[dict[str, Any]]:
        """Valid rows of ``logs/FILE``, without superseded ones, in the current format."""
        return (current_row(row) for _, row in read_jsonl(self.logs / file, self.superseded().get(file)))

    def last_step_row(self) -> dict[str, Any]:
        """Last valid row of ``train_log.jsonl``, in the current format; {} before the first step."""
        log = self.logs / "train_log.jsonl"
        superseded = self.superseded().get(log.name)
        if superseded and log.exists() and any(end >= log.stat().st_size for _, end in superseded):
            latest: dict[str, Any] = max((row for _, row in read_jsonl(log, superseded)), key=_step_of, default={})
            return current_row(latest)
        return current_row(last_jsonl(log, window=1 << 18) or {})

    def supersede_after(self, step: int) -> dict[str, ByteRange]:
        """Byte ranges that a resume from ``step`` supersedes: from the first later row to the end of each log."""
        superseded: dict[str, ByteRange] = {}
        known = self.superseded()
        for file in SUPERSEDED_LOGS:
            path = self.logs / file
            if not path.exists():
                continue
            close_torn_line(path)
            size = path.stat().st_size
            later = (start for start, row in read_jsonl(path, known.get(file)) if _step_of(row) > step)
            start = next(later, size)
            if start < size:
                superseded[file] = (start, size)
        return superseded

    def rewind(self, step: int) -> list[str]:
        """Make ``step_N`` the checkpoint to continue from; returns the names of the later checkpoints.

        Those move to ``training_state/superseded/`` and are kept; ``step_final`` is removed.
        """
        final = self.training_state / "step_final"
        if final.is_symlink():
            final.unlink()
        later = [checkpoint.path for checkpoint in self.checkpoints() if checkpoint.step > step]
        self.point("step_latest", step)
        if final.is_dir():
            self.set_aside([final])
        self.set_aside(later)
        return [path.name for path in later]

    def point(self, name: str, step: int) -> None:
        """Point ``step_latest`` or ``step_final`` at ``step_N``.

        A real directory of that name (older layout, or a copy that followed links) becomes ``step_N`` if that is
        missing; otherwise it is set aside.
        """
        alias, target = self.training_state / name, self.training_state / f"step_{step}"
        if alias.is_dir() and not alias.is_symlink():
            if target.exists():
                self.set_aside([alias])
            else:
                alias.rename(target)
        atomic_symlink(alias, target.name)

    def set_aside(self, checkpoints: list[Path]) -> None:
        """Move checkpoints to a new directory in ``training_state/superseded/``."""
        if not checkpoints:
            return
        folder = self.training_state / "superseded" / utc_now().replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        for path in checkpoints:
            path.rename(folder / path.name)
        fsync_path(folder)
        fsync_path(self.training_state)

    def summary(self) -> dict[str, Any]:
        """One row of a list of runs, as plain JSON."""
        status = self.read_status() or {}
        observed = self.observed_state()
        last = self.last_step_row()
        log = self.logs / "train_log.jsonl"
        return {
            "run": self.name,
            "state": observed.state,
            "host": observed.host,
            "layout": "run",
            "step": last.get("step", 0),
            "total_steps": status.get("total_steps"),
            "reward": last.get("reward"),
            "step_seconds": last.get("time/step"),
            "logged_at": last.get("time") or (utc_from(log.stat().st_mtime) if log.exists() else None),
            "started_at": status.get("started_at"),
            "updated_at": status.get("updated_at"),
            "run_seconds": status.get("run_seconds"),
            "stage": status.get("stage"),
            "exit_code": status.get("exit_code"),
            "error": status.get("error"),
            "restarts": status.get("restarts", 0),
            "nproc": status.get("nproc"),
            "device": status.get("device"),
            "stop_asked": self.stop_requested(),
        }


def _step_of(row: Mapping[str, Any]) -> float:
    return to_float(row.get("step")) or 0
