"""One run on disk: paths, stop file, checkpoints and logs. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir import fields
from grpo_train.run_dir.backup_note import backup_state, restore_hint
from grpo_train.run_dir.errors import code_of, prefixed
from grpo_train.run_dir.files import (
    ByteRange,
    append_jsonl,
    atomic_symlink,
    atomic_write,
    close_torn_line,
    fsync_path,
    last_jsonl,
    read_json,
    read_jsonl,
    to_float,
    to_json,
    touch,
    utc_from,
    utc_now,
)
from grpo_train.run_dir.formats import current_row
from grpo_train.run_dir.identity import read_note, run_identity
from grpo_train.run_dir.machine import foreign_owner, not_readable, not_stoppable
from grpo_train.run_dir.manifest import STEP_NAME, Checkpoint, list_checkpoints, newest_complete, problem_of
from grpo_train.run_dir.rows import unreadable_row
from grpo_train.run_dir.safe_json import (
    MAX_FILE_BYTES,
    MAX_RUN_FILE_BYTES,
    OverLimit,
    Unreadable,
    leave_out,
    open_regular,
    parse_object,
    read_bytes,
    read_object,
)
from grpo_train.run_dir.slurm_job import PREEMPTED
from grpo_train.run_dir.status import ObservedState, RunDirError, observe_run, read_state
from grpo_train.run_dir.tokens import FILE as TOKENS

WATCHDOG = "watchdog"
"""Requests a stop of a run that hangs, to restart it: a request of anybody else replaces this one, and PREEMPTED."""
SUPERSEDED_LOGS = ("train_log.jsonl", "rollouts.jsonl", "ratios.jsonl", TOKENS)


@dataclass(frozen=True)
class RunDir:
    """Directory of one training run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def root(self) -> Path:
        return self.path.parents[2 if self.path.parent.name == "completed_runs" else 1]  # archived, or not

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
    def killed_file(self) -> Path:
        """Empty; stands for the event of a kill that a full disk did not take."""
        return self.path / "control" / "killed"

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
        """Request a stop after the current step (the first rung of the stop ladder).

        A full disk still takes an empty file, which is a request, too. Raises OSError when it does not, RunDirError
        (``not_ours``) for a run of another account.
        """
        self.stop_file.parent.mkdir(exist_ok=True)
        if not self.stop_file.exists() or (read_json(self.stop_file) or {}).get("by") in (WATCHDOG, PREEMPTED):
            try:
                atomic_write(self.stop_file, to_json({"time": utc_now(), "by": by}) + "\n")
                self.log_event("stop_asked", by=by)
            except OSError as error:
                if isinstance(error, PermissionError) and foreign_owner(self.path):
                    raise RunDirError(not_stoppable(self.path, self.stop_file), code="not_ours") from error
                if code_of(error) != "disk_full":
                    raise
                touch(self.stop_file)

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
        found = self.newest_checkpoint()
        return found.step if found else 0

    def newest_checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint; damaged ones are left out. Checksums are not verified."""
        known = self.checkpoints()
        for checkpoint in known:
            if checkpoint.problem:
                leave_out(checkpoint.path, checkpoint.problem)
        return max((c for c in known if not c.problem), key=lambda checkpoint: checkpoint.step, default=None)

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
            have = (f"complete steps: {steps}" if steps else "no complete steps") + restore_hint(self.path, text)
            raise RunDirError(f"{self.name} has no checkpoint step_{text} ({have})", code="no_checkpoint")
        newest = newest_complete(complete)
        others = ", ".join(str(c.step) for c in complete if newest and c.step <= newest.step)
        have = "no other complete steps"
        if newest:
            have = f"other complete steps: {others}; newest complete: step_{newest.step}; "
            have += hint.format(step=newest.step)
        if not found:
            problem = f"{alias} points to {os.readlink(alias)}, which does not exist"
            raise RunDirError(f"{problem} ({have})", code="bad_checkpoint")
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

    def launch_text(self, key: str) -> str:
        """A field of ``launch.json`` as text; "" without it, and where the file cannot be read."""
        try:
            return str(self.read_launch().get(key) or "")
        except OSError:  # another account's
            return ""

    def read_launch(self) -> dict[str, Any]:
        return read_json(self.launch_file, MAX_RUN_FILE_BYTES, finite=True) or {}

    def launched(self) -> dict[str, Any]:
        """What a command acts on: ``read_launch`` with checked types. Raises Unreadable for a damaged file, where
        ``read_launch`` has nothing: a run would start, or be compared, with other weights."""
        with prefixed(f"{self.name}: "):
            launch = read_object(self.launch_file, MAX_RUN_FILE_BYTES) or {}
            with prefixed(f"{self.launch_file.name}: "):
                fields.check_launch_fields(launch)
        return launch

    def read_status(self) -> dict[str, Any] | None:
        return read_json(self.status_file, MAX_RUN_FILE_BYTES, finite=True)

    def observed_state(self) -> ObservedState:
        status, observed = read_state(self.path)
        return observed if status is not None else observe_run(self.path, None, self.read_launch())

    def events(self, *, strict: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows of ``events.jsonl`` as :func:`read_jsonl`; a file over MAX_FILE_BYTES has none."""
        with suppress(FileNotFoundError, NotADirectoryError):  # removed in the meantime
            if (size := self.events_file.stat().st_size) <= MAX_FILE_BYTES:
                yield from read_jsonl(self.events_file, strict=strict)
            elif strict:
                raise OverLimit(f"{self.events_file.name}: {size} bytes (the limit is {MAX_FILE_BYTES})")

    def superseded(self, *, strict: bool = False) -> dict[str, list[ByteRange]]:
        """Byte ranges of each log that a resume from an earlier step superseded.

        ``strict`` raises Unreadable for what is otherwise left out: malformed ranges, and lines as in read_jsonl.
        """
        ranges: dict[str, list[ByteRange]] = {}
        for _, event in self.events(strict=strict):
            found = event.get("superseded") or {}
            for file, pair in found.items() if isinstance(found, dict) else [("", found)]:
                if isinstance(pair, list) and [type(item) for item in pair] == [int, int]:
                    ranges.setdefault(file, []).append((pair[0], pair[1]))
                elif strict:
                    raise Unreadable(f"{self.events_file.name}: malformed 'superseded'")
        return ranges

    def read_log(self, file: str) -> Iterator[dict[str, Any]]:
        """Valid rows of ``logs/FILE``, without superseded ones, in the current format."""
        return (current_row(row) for _, row in read_jsonl(self.logs / file, self.superseded().get(file)))

    def last_step_row(self, *, strict: bool = False) -> dict[str, Any]:
        """Last valid row of ``train_log.jsonl``, in the current format; {} before the first step.

        ``strict`` as in :meth:`superseded`. A log over MAX_FILE_BYTES is not searched for rows before a resume.
        """
        log = self.logs / "train_log.jsonl"
        superseded = self.superseded(strict=strict).get(log.name)
        size = log.stat().st_size if superseded and log.exists() else 0
        if superseded and 0 < size <= MAX_FILE_BYTES and any(end >= size for _, end in superseded):
            rows = (row for _, row in read_jsonl(log, superseded, strict=strict))
            return current_row(max(rows, key=_step_of, default={}))
        return current_row(last_jsonl(log, window=1 << 18, strict=strict) or {})

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
        """One row of a list of runs, as plain JSON with typed fields; ``unreadable`` with the reason where a file of
        the run is damaged. Never raises."""
        try:
            if not self.name.isprintable():
                raise Unreadable("the directory's name has characters that cannot be printed")
            return self._summary()
        except Unreadable as error:
            reason = str(error)
        except OSError as error:
            reason = f"{error.filename or self.path}: {error.strerror or error}"
            if isinstance(error, PermissionError):
                reason = not_readable(self.path)
        leave_out(self.path, reason)
        return unreadable_row(self.name, reason)

    def _summary(self) -> dict[str, Any]:
        """Raises Unreadable and OSError."""
        launched = read_bytes(self.launch_file, MAX_RUN_FILE_BYTES)
        with prefixed(f"{self.launch_file.name}: "):
            launch = parse_object(launched) if launched is not None else {}
        who = run_identity(self.path, launched)
        given = read_object(self.status_file, MAX_RUN_FILE_BYTES)
        status = given or {}
        if self.config_file.exists():
            open_regular(self.config_file).close()
        log = self.logs / "train_log.jsonl"
        last = self.last_step_row(strict=True)
        with prefixed(f"{log.name}: "):
            logged = {
                "step": fields.integer(last, "step") or 0,
                "reward": fields.number(last, "reward"),
                "step_seconds": fields.number(last, "time/step"),
                "alarm": fields.alarm(last),
                "logged_at": fields.text(last, "time") or (utc_from(log.stat().st_mtime) if log.exists() else None),
            }
        with prefixed(f"{self.launch_file.name}: "):
            launched_at = fields.text(launch, "time")
            sweep = fields.text(launch, "sweep")
        with prefixed(f"{self.status_file.name}: "):
            fields.text(status, "state"), fields.text(status, "host")
            observed = observe_run(self.path, given, launch)
            if observed.state == "lost" and read_object(self.status_file, MAX_RUN_FILE_BYTES) != given:
                return self._summary()  # it recorded its end and exited meanwhile
            return {
                "run": self.name,
                "identity": who.identity or None,
                "parent": who.parent or None,
                "state": observed.state,
                "host": observed.host,
                "layout": "run",
                "owner": foreign_owner(self.path),
                "launched_at": launched_at,
                "sweep": sweep,
                **logged,
                "total_steps": fields.integer(status, "total_steps"),
                "started_at": fields.text(status, "started_at"),
                "updated_at": fields.text(status, "updated_at"),
                "run_seconds": fields.number(status, "run_seconds"),
                "stage": fields.text(status, "stage"),
                "exit_code": fields.integer(status, "exit_code"),
                "error": fields.error(status, "error"),
                "reason": fields.text(status, "reason"),
                "restarts": fields.integer(status, "restarts") or 0,
                "nproc": fields.integer(status, "nproc"),
                "device": fields.text(status, "device"),
                "stop_asked": self.stop_requested(),
                "note": read_note(self.path),
                "backup": backup_state(self.path, fields.integer(last, "step") or 0, self.events()),
            }


def _step_of(row: Mapping[str, Any]) -> float:
    return to_float(row.get("step")) or 0
