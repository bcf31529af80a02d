"""The root and its runs: finding the root; creating, listing and opening runs. Standard library only."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_train.run_dir.errors import code_of, nearest
from grpo_train.run_dir.files import atomic_write, closing_descriptor, open_lock, remove_tree, utc_from, utc_now
from grpo_train.run_dir.identity import older_identity
from grpo_train.run_dir.machine import not_readable, not_writable
from grpo_train.run_dir.manifest import list_checkpoints
from grpo_train.run_dir.processes import boot_id
from grpo_train.run_dir.rows import printable, unreadable_row
from grpo_train.run_dir.run import RunDir
from grpo_train.run_dir.status import RunDirError

ROOT_VARIABLE = "LOCALFS_ROOT"
SWEEP_VARIABLE = "GRPO_SWEEP"
"""Name of the sweep that starts a run."""
DEFAULT_ROOT = Path("/lambda/nfs/localfs")
_DIRECTORIES = ("training_runs", "eval_runs", "archive", "archive/completed_runs", "archive/important_checkpoints")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


# --------------------------------------------------------------------------------------------------- the root


def resolve_root(explicit: str | Path | None = None) -> Path:
    """The root: ``--root``, else ``LOCALFS_ROOT``, else ``/lambda/nfs/localfs``. It need not exist."""
    return Path(explicit or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT).expanduser().absolute()


def existing_root(explicit: str | Path | None = None) -> Path:
    """:func:`resolve_root`, of a root that must exist. Raises RunDirError (``bad_root``)."""
    root = resolve_root(explicit)
    if not root.is_dir():
        raise RunDirError(
            f"the root {root} is not a directory here; mount its disk, "
            f"or choose another with --root or {ROOT_VARIABLE}",
            code="bad_root",
        )
    return root


def prepare_root(root: Path) -> Path:
    """Create the directories of a root, as open as the root is: runs inside have the umask's modes.

    Raises RunDirError (``bad_root``) if the root is not writable.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        for name in _DIRECTORIES:
            make_like(root / name, root)
        if not os.access(root / "training_runs", os.W_OK):
            read_only = os.statvfs(root).f_flag & os.ST_RDONLY
            code = errno.EROFS if read_only else errno.EACCES
            raise OSError(code, os.strerror(code), str(root / "training_runs"))
    except OSError as error:
        denied = isinstance(error, PermissionError)
        reason = not_writable(Path(error.filename or root)) if denied else error.strerror or error
        raise RunDirError(
            f"cannot write to the root {root}: {reason} "
            f"(or choose another with --root or {ROOT_VARIABLE}, or mount it read-write)",
            code="bad_root",
        ) from error
    return root


def make_like(path: Path, pattern: Path) -> None:
    """Create a directory with the mode of another one, unless it exists."""
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    with suppress(OSError):  # a mount without modes
        path.chmod(stat.S_IMODE(pattern.stat().st_mode))


# ------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Launch:
    """The request for a new run; ``launch.json`` holds these fields."""

    argv: list[str]
    """The command, or its equivalent for a shell."""
    config_name: str
    config_text: str
    overrides: list[str]
    """Each ``section.key=value``."""
    ckpt: str | None = None
    """Starting weights, relative to the root where they are inside it."""
    nproc: int | None = None
    """None = ``run.nproc``."""
    by: str = "shell"
    idempotency_key: str | None = None
    tmux: str | None = None
    """Socket of the tmux server with the supervisor's session; None without a session."""
    sweep: str | None = None
    """The sweep that trains it."""
    code: dict[str, str] | None = None
    """The :class:`grpo_train.run_dir.code.Code` of a launch on a box that it was synced to."""
    grant: str | None = None
    """Account of the assistant that launched it; None = a person did."""


def create_run(root: Path, launch: Mapping[str, Any], name: str | None = None) -> RunDir:
    """Create a run's directory with its ``launch.json``, the fields of a :class:`Launch`.

    An idempotency key that was used before returns the run it created. The default name is the time,
    ``run_2025-08-19_12-34-56``.

    Raises RunDirError: ``bad_name``, ``name_taken``, ``bad_root``, ``disk_full``.
    """
    if name:
        check_name(name)
    prepare_root(root)
    stamp = datetime.now().strftime("run_%Y-%m-%d_%H-%M-%S")
    candidates = [name] if name else [stamp, *(f"{stamp}-{extra}" for extra in range(2, 100))]
    with _locked(root / "training_runs" / ".lock"):
        if known := find_by_key(root, str(launch.get("idempotency_key") or "")):
            return known
        for candidate in candidates:
            path = root / "training_runs" / candidate
            if path.exists() or path.is_symlink():
                continue
            staging = path.with_name(f".new-{candidate}-{secrets.token_hex(4)}")
            try:
                for directory in ("control", "training_state", "logs"):
                    (staging / directory).mkdir(parents=True)
                here = {"host": socket.gethostname(), "boot_id": boot_id()}
                content = {"time": utc_now(), "run": candidate, **here, **launch}
                atomic_write(staging / "launch.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
                RunDir(staging).log_event("launched", step=0, by=launch.get("by", ""), argv=launch.get("argv", []))
                staging.rename(path)
            except OSError as error:
                remove_tree(staging)
                code = "disk_full" if code_of(error) == "disk_full" else "bad_root"
                message = f"cannot create the run directory {path}: {error.strerror or error}"
                raise RunDirError(message, code=code) from error
            return RunDir(path)
    raise RunDirError(
        f"a run named {name or stamp} already exists under {root}; choose another --run-name", code="name_taken"
    )


def find_by_key(root: Path, key: str) -> RunDir | None:
    """The run that was created with this idempotency key; None for the key ""."""
    return next((run for run in list_runs(root) if run.launch_text("idempotency_key") == key), None) if key else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that two processes cannot create a run with the same key or name."""
    import fcntl  # POSIX only

    try:
        descriptor = open_lock(path)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        reason = not_writable(path) if denied else f"cannot write {path}: {error.strerror or error}"
        raise RunDirError(reason, code="bad_root") from error
    with closing_descriptor(descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def check_name(name: str) -> str:
    """Validate and return a run's name: at most 128 letters, digits, ``. _ -``, the first a letter or digit.

    Raises RunDirError (``bad_name``).
    """
    if not _NAME.fullmatch(name):
        raise RunDirError(
            f"invalid run name '{name}'; use up to 128 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit",
            code="bad_name",
        )
    return name


def list_runs(root: Path) -> list[RunDir]:
    """Runs of the current layout, newest first."""
    folder = root / "training_runs"
    if not folder.is_dir():
        return []
    runs = [RunDir(path) for path in folder.iterdir() if not path.name.startswith(".") and is_run(path)]
    return sorted(runs, key=lambda run: (run.launch_text("time"), run.name), reverse=True)


def is_run(path: Path) -> bool:
    """Whether a directory has a ``launch.json``, whole or not, or may not be read by this account."""
    try:
        os.lstat(f"{path}/launch.json")  # to join paths takes longer
    except PermissionError:  # another account's
        return True
    except OSError:  # without one, a file, or removed in the meantime
        return False
    return True


def open_run(root: Path, name_or_path: str) -> RunDir:
    """Open a run by name (under the root) or by path. Raises RunDirError: ``no_run`` with the nearest name,
    ``bad_run`` for a run of the older layout."""
    given = Path(name_or_path).expanduser()
    for path in (root / "training_runs" / name_or_path, given):
        try:
            os.stat(path)
            if os.path.lexists(path / "launch.json") or os.path.lexists(path / "config.yaml"):
                return RunDir(Path(os.path.abspath(path)))
            os.stat(path / "launch.json")
        except PermissionError as error:  # another account's
            raise RunDirError(not_readable(path), code="not_ours") from error
        except (OSError, ValueError):
            continue
    older = given if given.parent.name == "rl_runs" else root / "rl_runs" / name_or_path
    if older.is_dir():
        raise RunDirError(
            f"{older.name} is a run of the older layout, which can only be evaluated: "
            f"grpo-train eval --ckpt-path {older}/step_N"
        )
    names = [run.name for run in list_runs(root)]
    near = nearest(given.name, names)
    hint = f"did you mean {near}?" if near else f"newest: {', '.join(names[:3])}" if names else "no runs yet"
    raise RunDirError(f"no run named '{name_or_path}' under {root}; {hint}", code="no_run")


def list_older_runs(root: Path) -> list[dict[str, Any]]:
    """Runs of the older layout (``rl_runs/``) as rows like those of :meth:`RunDir.summary`."""
    folder = root / "rl_runs"
    if not folder.is_dir():
        return []
    rows = []
    for path in folder.iterdir():
        try:
            if not path.is_dir():
                continue
            steps, modified = list_checkpoints(path), path.stat().st_mtime
        except PermissionError:  # another account's
            rows.append((0.0, {**unreadable_row(path.name, not_readable(path)), "layout": "rl_runs"}))
            continue
        except OSError:  # removed in the meantime
            continue
        row = {
            "run": printable(path.name),
            "identity": older_identity(path.name, (each.step for each in steps)),
            "state": "old layout",
            "layout": "rl_runs",
            "step": steps[-1].step if steps else 0,
            "logged_at": utc_from(modified),
        }
        rows.append((modified, row))
    return [row for _, row in sorted(rows, key=lambda entry: (-entry[0], entry[1]["run"]))]
