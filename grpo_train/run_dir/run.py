"""One run on disk: its paths, the stop file, its checkpoints, its logs. Standard library only (the agent carries it).

How runs lie under a root, and who makes them: :mod:`grpo_train.run_dir`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import (
    ByteRange,
    append_jsonl,
    atomic_symlink,
    atomic_write,
    close_torn_line,
    fsync_directory,
    last_jsonl,
    number,
    parse_time,
    read_json,
    read_jsonl,
    to_json,
    utc_from,
    utc_now,
)
from grpo_train.run_dir.manifest import STEP_NAME, Checkpoint, list_checkpoints, newest_complete, problem_of
from grpo_train.run_dir.status import FRESH_S, ObservedState, RunDirError, observe

SUPERSEDED_LOGS = ("train_log.jsonl", "rollouts.jsonl", "ratios.jsonl")


@dataclass(frozen=True)
class RunDir:
    """The paths of one training run."""

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
        """Append to ``logs/events.jsonl``; ``step`` defaults to the last step logged."""
        step = fields.pop("step", None)
        if step is None:
            step = self.last_step_row().get("step", 0)
        append_jsonl(self.events_file, {"step": step, "time": utc_now(), "event": event, **fields})

    # control -------------------------------------------------------------------------------------------

    def request_stop(self, by: str) -> None:
        """Ask for a stop after the step that is under way (first rung of the stop ladder)."""
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
        """Every ``step_N`` in order of N, aliases left out."""
        return list_checkpoints(self.training_state)

    def checkpoint(
        self, which: str | int, *, deep: bool = False, way_out: str = "resume with --from-step {step}"
    ) -> Checkpoint:
        """The complete checkpoint called ``latest``, ``final`` or N; ``deep`` verifies every checksum too.

        Raises RunDirError naming the file that is missing or damaged, the other complete steps, and the newest of them
        whose every checksum is right, with the ``way_out`` to it.
        """
        text = str(which)
        if text.isascii() and text.isdigit():
            found = [c for c in self.checkpoints() if c.step == int(text)][:1]
        elif text in ("latest", "final"):
            found = self._alias(text)
        else:
            raise RunDirError(f"'{text}' is no checkpoint: say latest, final or a step number")
        problem = (found[0].problem or (problem_of(found[0].path, deep=True) if deep else "")) if found else ""
        if found and not problem:
            return found[0]
        complete = [c for c in self.checkpoints() if not c.problem and c not in found]
        alias = self.training_state / f"step_{text}"
        if not found and not alias.is_symlink():
            steps = ", ".join(str(c.step) for c in complete)
            have = f"complete steps: {steps}" if steps else "it has no complete steps"
            raise RunDirError(f"{self.name} has no checkpoint step_{text} ({have})")
        newest = newest_complete(complete)
        others = ", ".join(str(c.step) for c in complete if newest and c.step <= newest.step)
        have = "it has no other complete steps"
        if newest:
            have = f"other complete steps: {others}; newest complete: step_{newest.step}; "
            have += way_out.format(step=newest.step)
        if not found:
            raise RunDirError(f"{alias} points to {os.readlink(alias)}, which is not there ({have})")
        raise RunDirError(f"checkpoint {found[0].path} cannot be used: {problem} ({have})")

    def resume_point(self) -> Checkpoint | None:
        """What a start goes on from, every checksum verified; None for a run that has saved nothing yet.

        Raises RunDirError like :meth:`checkpoint`. A link to a step that is gone is no fresh start.
        """
        if not self.checkpoints() and not (self.training_state / "step_latest").is_symlink():
            return None
        return self.checkpoint("latest", deep=True)

    def _alias(self, name: str) -> list[Checkpoint]:
        """The checkpoint that ``step_latest`` or ``step_final`` stands for: none or one."""
        alias, known = self.training_state / f"step_{name}", self.checkpoints()
        complete = [c for c in known if not c.problem][-1:] if name == "latest" else []
        if alias.is_symlink():
            match = STEP_NAME.fullmatch(os.path.basename(os.readlink(alias)))
            found = [c for c in known if match and c.step == int(match[1])]
            # A kill between the rename of a checkpoint and the move of the link leaves the link one behind.
            return complete if found and complete and complete[0].step > found[0].step else found
        if alias.is_dir():  # an older layout: a real directory
            info = read_json(alias / "training_info.json") or {}
            return [Checkpoint(int(number(info.get("step")) or 0), alias, problem_of(alias))]
        return complete

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
        """Byte ranges of each log that a resume from an earlier step has made void."""
        ranges: dict[str, list[ByteRange]] = {}
        for _, event in read_jsonl(self.events_file):
            for file, (start, end) in (event.get("superseded") or {}).items():
                ranges.setdefault(file, []).append((int(start), int(end)))
        return ranges

    def read_log(self, file: str) -> Iterator[dict[str, Any]]:
        """The valid rows of ``logs/FILE``, superseded ones left out."""
        return (row for _, row in read_jsonl(self.logs / file, self.superseded().get(file)))

    def last_step_row(self) -> dict[str, Any]:
        """The last valid row of ``train_log.jsonl``; {} where there is none yet."""
        log = self.logs / "train_log.jsonl"
        void = self.superseded().get(log.name)
        if void and log.exists() and any(end >= log.stat().st_size for _, end in void):
            return max((row for _, row in read_jsonl(log, void)), key=lambda r: number(r.get("step")) or 0, default={})
        return last_jsonl(log, window=1 << 18) or {}

    def supersede_after(self, step: int) -> dict[str, ByteRange]:
        """The byte ranges that a resume from ``step`` makes void: from the first later row to the file's end."""
        void: dict[str, ByteRange] = {}
        known = self.superseded()
        for file in SUPERSEDED_LOGS:
            path = self.logs / file
            if not path.exists():
                continue
            close_torn_line(path)
            size = path.stat().st_size
            later = (start for start, row in read_jsonl(path, known.get(file)) if (number(row.get("step")) or 0) > step)
            start = next(later, size)
            if start < size:
                void[file] = (start, size)
        return void

    def rewind(self, step: int) -> list[str]:
        """Make ``step_N`` the state a start goes on from: later checkpoints move to ``training_state/superseded/``
        (kept, never deleted), ``step_latest`` points at it, ``step_final`` goes. Returns what was moved."""
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
        """Make ``step_latest`` or ``step_final`` a link to ``step_N``.

        A directory of that name (an older layout, a copy that followed links) becomes that step where there is none,
        else it is set aside.
        """
        alias, target = self.training_state / name, self.training_state / f"step_{step}"
        if alias.is_dir() and not alias.is_symlink():
            if target.exists():
                self.set_aside([alias])
            else:
                alias.rename(target)
        atomic_symlink(alias, target.name)

    def set_aside(self, checkpoints: list[Path]) -> None:
        """Move checkpoints to a new directory in ``training_state/superseded/``: kept, and out of the way."""
        if not checkpoints:
            return
        attic = self.training_state / "superseded" / utc_now().replace(":", "-")
        attic.mkdir(parents=True, exist_ok=True)
        for path in checkpoints:
            path.rename(attic / path.name)
        fsync_directory(attic)
        fsync_directory(self.training_state)

    def summary(self) -> dict[str, Any]:
        """What a list of runs shows, as plain JSON."""
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
            "stop_asked": self.stop_requested(),
        }
