"""Contract 1: the run directory. What a run is on disk, who writes what, and how a reader understands it.

Standard library only: the link's agent carries this file to boxes on which nothing is installed. The box's file
system is the only truth; whatever a program needs to know about a run it rebuilds from here.

    ROOT/training_runs/RUN/   launch.json config.yaml status.json control/stop training_state/ logs/ tensorboard/
    ROOT/eval_runs/RUN_DATASET/   eval_config.yaml status.json step_N_DATASET/ consolidated_metrics.csv
    ROOT/archive/  ROOT/rl_runs/ (an older layout: listed, its step_N/ can be evaluated)
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_train.files import (
    ByteRange,
    append_jsonl,
    atomic_symlink,
    atomic_write,
    close_torn_line,
    last_jsonl,
    number,
    parse_time,
    read_json,
    read_jsonl,
    remove_tree,
    to_json,
    utc_from,
    utc_now,
)
from grpo_train.manifest import MANIFEST, STEP_NAME, Checkpoint, list_checkpoints, problem_of, sha256, write_manifest
from grpo_train.status import END_STATES, FRESH_S, LIVE_STATES, ObservedState, RunDirError, StatusWriter, observe

__all__ = [
    "DEFAULT_ROOT",
    "END_STATES",
    "FRESH_S",
    "LIVE_STATES",
    "MANIFEST",
    "ROOT_VARIABLE",
    "SUPERSEDED_LOGS",
    "Checkpoint",
    "ObservedState",
    "RunDir",
    "RunDirError",
    "StatusWriter",
    "check_name",
    "create_run",
    "eval_folder",
    "list_checkpoints",
    "list_evaluations",
    "list_older_runs",
    "list_runs",
    "observe",
    "open_run",
    "prepare_root",
    "problem_of",
    "remove_tree",
    "resolve_root",
    "sha256",
    "utc_from",
    "write_manifest",
]

ROOT_VARIABLE = "LOCALFS_ROOT"
DEFAULT_ROOT = Path("/lambda/nfs/localfs")
SUPERSEDED_LOGS = ("train_log.jsonl", "rollouts.jsonl", "ratios.jsonl")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


# --------------------------------------------------------------------------------------------------- the root


def resolve_root(explicit: str | Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """The root: ``--root``, else ``LOCALFS_ROOT``, else ``/lambda/nfs/localfs``. Not required to exist yet."""
    return Path(explicit or environment.get(ROOT_VARIABLE) or DEFAULT_ROOT).expanduser().absolute()


def prepare_root(root: Path) -> Path:
    """Make the root's own directories; raises RunDirError when it cannot be written."""
    try:
        for name in ("training_runs", "eval_runs", "archive/completed_runs", "archive/important_checkpoints"):
            (root / name).mkdir(parents=True, exist_ok=True)
        if not os.access(root / "training_runs", os.W_OK):
            raise PermissionError(13, "Permission denied", str(root / "training_runs"))
    except OSError as error:
        raise RunDirError(
            f"cannot write to the root {root}: {error.strerror or error} "
            f"(choose another with --root or {ROOT_VARIABLE}, or mount it read-write)"
        ) from error
    return root


# ---------------------------------------------------------------------------------------------------- a run


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

    def checkpoint(self, which: str | int, *, deep: bool = False) -> Checkpoint:
        """The complete checkpoint called ``latest``, ``final`` or N; ``deep`` verifies every checksum too.

        Raises RunDirError naming the file that is missing or damaged, and the complete steps where there are others.
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
        complete = [c.step for c in self.checkpoints() if not c.problem and c not in found]
        others = "other complete steps" if found else "complete steps"
        have = f"{others}: {', '.join(map(str, complete))}" if complete else f"it has no {others}"
        if not found:
            raise RunDirError(f"{self.name} has no checkpoint step_{text} ({have})")
        raise RunDirError(f"checkpoint {found[0].path} cannot be used: {problem} ({have})")

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
        if later:
            attic = self.training_state / "superseded" / utc_now().replace(":", "-")
            attic.mkdir(parents=True)
            atomic_symlink(self.training_state / "step_latest", f"step_{step}")
            for path in later:
                path.rename(attic / path.name)
        atomic_symlink(self.training_state / "step_latest", f"step_{step}")
        return [path.name for path in later]

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


def create_run(root: Path, launch: Mapping[str, Any], name: str | None = None) -> RunDir:
    """Make a run's directory with its ``launch.json``; the one place where runs come into being.

    ``launch`` says who asked for what: ``argv``, ``config_text``, ``config_name``, ``overrides`` (list of
    ``section.key=value``), ``ckpt``, ``nproc``, ``by``, ``idempotency_key``. A key that was used already returns the
    run it made. Without a name the run is called by the time, ``run_2025-08-19_12-34-56``.

    Raises RunDirError when the name is taken or malformed or the root cannot be written.
    """
    if name:
        check_name(name)
    prepare_root(root)
    with _locked(root / "training_runs" / ".lock"):
        return _create_run(root, launch, name)


def _create_run(root: Path, launch: Mapping[str, Any], name: str | None) -> RunDir:
    if key := launch.get("idempotency_key"):
        for run in list_runs(root):
            if run.read_launch().get("idempotency_key") == key:
                return run
    stamp = datetime.now().strftime("run_%Y-%m-%d_%H-%M-%S")
    candidates = [name] if name else [stamp, *(f"{stamp}-{extra}" for extra in range(2, 100))]
    for candidate in candidates:
        path = root / "training_runs" / candidate
        staging = path.with_name(f".new-{candidate}-{secrets.token_hex(4)}")
        try:
            for directory in ("control", "training_state", "logs"):
                (staging / directory).mkdir(parents=True)
            content = {"time": utc_now(), "run": candidate, **launch}
            atomic_write(staging / "launch.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            if path.exists() or path.is_symlink():
                remove_tree(staging)
                continue
            staging.rename(path)
        except OSError as error:
            remove_tree(staging)
            raise RunDirError(f"cannot make the run directory {path}: {error.strerror or error}") from error
        run = RunDir(path)
        run.log_event("launched", step=0, by=launch.get("by", ""), argv=launch.get("argv", []))
        return run
    raise RunDirError(f"a run named {name or stamp} exists already under {root} (choose another --run-name)")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file: one maker of runs at a time, so that a key or a name is never used twice."""
    import fcntl  # POSIX only, and only where a run is made

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_name(name: str) -> str:
    """A run's name: letters, digits, ``. _ -``, at most 128, starting with a letter or digit."""
    if not _NAME.fullmatch(name):
        raise RunDirError(f"'{name}' cannot name a run: use letters, digits, '.', '_' and '-' (128 at most)")
    return name


def list_runs(root: Path) -> list[RunDir]:
    """All runs of this layout, newest first."""
    folder = root / "training_runs"
    if not folder.is_dir():
        return []
    runs = [RunDir(p) for p in folder.iterdir() if not p.name.startswith(".") and (p / "launch.json").exists()]
    return sorted(runs, key=lambda run: (str(run.read_launch().get("time", "")), run.name), reverse=True)


def open_run(root: Path, name_or_path: str) -> RunDir:
    """A run by name (under the root) or by path. Raises RunDirError with the nearest names."""
    given = Path(name_or_path).expanduser()
    for path in (root / "training_runs" / name_or_path, given):
        if (path / "launch.json").exists() or (path / "config.yaml").exists():
            return RunDir(Path(os.path.abspath(path)))
    names = [run.name for run in list_runs(root)]
    near = difflib.get_close_matches(given.name, names, n=3, cutoff=0.4) or names[:3]
    hint = f"; did you mean {', '.join(near)}?" if near else " (it has no runs yet)"
    raise RunDirError(f"no run named '{name_or_path}' under {root}{hint}")


def list_older_runs(root: Path) -> list[dict[str, Any]]:
    """Runs of the older layout (``rl_runs/``), as rows like :meth:`RunDir.summary`'s."""
    folder = root / "rl_runs"
    if not folder.is_dir():
        return []
    rows = []
    for path in sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True):
        steps = list_checkpoints(path)
        rows.append(
            {
                "run": path.name,
                "state": "old layout",
                "layout": "rl_runs",
                "step": steps[-1].step if steps else 0,
                "logged_at": utc_from(path.stat().st_mtime),
            }
        )
    return rows


# -------------------------------------------------------------------------------------------------- evaluations


def eval_folder(root: Path, run: str, dataset: str) -> Path:
    """``eval_runs/RUN_DATASET``."""
    return root / "eval_runs" / f"{run}_{dataset}"


def list_evaluations(root: Path, run: str) -> list[dict[str, Any]]:
    """Each evaluation of a run: its folder's name, status, and one row a step of ``consolidated_metrics.csv``."""
    found = []
    for folder in sorted((root / "eval_runs").glob(f"{run}_*")):
        status = read_json(folder / "status.json")
        if status is None or status.get("training_run") != run:
            continue
        table = folder / "consolidated_metrics.csv"
        rows = list(csv.DictReader(table.open(newline=""))) if table.exists() else []
        observed = observe(status)
        found.append({"name": folder.name, "state": observed.state, "status": status, "metrics": rows})
    return found
