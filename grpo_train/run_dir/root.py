"""The runs of a root: where the root is, how a run is created, listed and opened. Standard library only."""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import atomic_write, remove_tree, utc_from, utc_now
from grpo_train.run_dir.manifest import list_checkpoints
from grpo_train.run_dir.run import RunDir
from grpo_train.run_dir.status import (
    RunDirError,
)

ROOT_VARIABLE = "LOCALFS_ROOT"
DEFAULT_ROOT = Path("/lambda/nfs/localfs")
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


# ------------------------------------------------------------------------------------------------------- runs


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
