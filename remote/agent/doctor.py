"""``doctor``: checks whether this box is ready, each with a hint where it is not."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.gpus import GpuReadError, query_gpus
from grpo_train.run_dir.owners import account, create_command, foreign_owner, not_readable, not_writable
from grpo_train.run_dir.umask import PRIVATE
from remote.agent import from_memory
from remote.agent.context import BoxContext
from remote.agent.engine import find_engine, running_version, training_device
from remote.agent.sessions import Sessions, no_tmux
from remote.protocol.messages import RemoteError
from remote.protocol.operations import DoctorReply, NoParameters
from remote.protocol.rows import Check

MIN_FREE_BYTES = 5 * 10**9
MIN_TMUX = (3, 2)
MIN_SHARED_BYTES = 64 * 2**20

Result = tuple[bool, str, str]
"""ok, detail, hint."""


def doctor(box: BoxContext, request: NoParameters) -> DoctorReply:
    """Run every check. Never raises: a check that fails in any way is a result."""
    checks = [_run(name, check, box) for name, check in CHECKS.items()]
    return {"checks": [{**check} for check in checks], "ok": all(check["ok"] for check in checks)}


def _run(name: str, check: Callable[[BoxContext], Result], box: BoxContext) -> Check:
    try:
        ok, detail, hint = check(box)
    except PermissionError as error:
        ok, detail, hint = False, not_readable(Path(error.filename or box.root)), ""
    except UserError as error:
        ok, detail, hint = False, str(error), str(getattr(error, "hint", ""))
    except Exception as error:
        ok, detail, hint = False, f"{type(error).__name__}: {error}", ""
    return {"name": name, "ok": ok, "detail": detail, "hint": hint}


def _python(box: BoxContext) -> Result:
    return True, f"{platform.python_version()} at {sys.executable}", ""


def _agent(box: BoxContext) -> Result:
    """Where this agent is stored."""
    if not from_memory.sha256:
        return True, f"stored at {sys.argv[0]}", ""
    reasons = "; ".join(from_memory.problems) or "it was not stored"
    hint = "every connection sends it again; 'agent_dir' in boxes.yaml names a directory that can be written"
    return True, f"runs from memory ({reasons})", hint


def _locale(box: BoxContext) -> Result:
    return True, f"LC_ALL={os.environ.get('LC_ALL', '')} (set by the agent)", ""


def _root(box: BoxContext) -> Result:
    """Write a real file: nothing else tells a read-only mount."""
    root = box.root
    if not root.exists():
        parent = next(folder for folder in root.parents if folder.exists())
        if os.access(parent, os.W_OK):
            return True, f"{root} does not exist yet and will be created", ""
        detail = f"{root} does not exist and {parent} is not writable"
        owner = f": it belongs to {name}" if (name := foreign_owner(parent)) else ""
        return False, detail + owner, f"mount it, or on the box: {create_command(root)}"
    runs = root / "training_runs"
    folder = runs if runs.is_dir() else root
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".grpo-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except PermissionError:
        return False, not_writable(folder), "or set another 'root' in boxes.yaml"
    except OSError as error:
        hint = "mount it read-write, or set another 'root' in boxes.yaml"
        return False, f"{root} is not writable: {error.strerror or error}", hint
    owner = foreign_owner(folder)
    return True, f"{root} (belongs to {owner}, writable for {account()})" if owner else str(root), ""


def _umask(box: BoxContext) -> Result:
    """What other accounts may do with new runs."""
    umask = int(box.settings.umask or PRIVATE, 8)
    group, others = 0o070 & ~umask, 0o007 & ~umask
    readers = "everyone" if others else "their owner's group" if group else "their owner only"
    return True, f"{umask:03o}: new runs are readable by {readers}", ""


def _disk(box: BoxContext) -> Result:
    folder = next(path for path in (box.root, *box.root.parents) if path.exists())
    usage = shutil.disk_usage(folder)
    detail = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB free under {folder}"
    enough = usage.free >= MIN_FREE_BYTES
    return enough, detail, "" if enough else "free disk space: a checkpoint that does not fit ends the run"


def _tmux(box: BoxContext) -> Result:
    path = shutil.which("tmux")
    if not path:
        raise no_tmux()
    output = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10).stdout.strip()
    version = re.search(r"(\d+)\.(\d+)", output)
    if version and (int(version[1]), int(version[2])) < MIN_TMUX:
        return False, f"{output} at {path}", "install 3.2a or newer: sudo apt-get install -y tmux"
    return True, f"{output} at {path}, {len(Sessions(box).rows())} sessions", ""


def _repo(box: BoxContext) -> Result:
    if box.repo is None:
        return True, "no checkout is configured for this box", "set 'repo' in boxes.yaml to use its configs"
    if not (box.repo / "config").is_dir():
        return False, f"{box.repo} has no config directory", "correct 'repo' in boxes.yaml"
    return True, str(box.repo), ""


def _engine(box: BoxContext) -> Result:
    engine = find_engine(box)
    version = running_version(box, engine)
    if mismatch := version.mismatch():
        return False, mismatch, version.upgrade_hint(str(box.repo or ""))
    return True, f"{version.version or 'unknown version'}, {engine.argv[-1]} (from {engine.reason})", ""


def _device(box: BoxContext) -> Result:
    try:
        engine = find_engine(box)
    except RemoteError:
        return True, "unknown without an engine", ""
    return True, training_device(box, engine) or "not reported by this version of the engine", ""


def _gpus(box: BoxContext) -> Result:
    try:
        gpus = query_gpus(processes=False)
    except GpuReadError as error:
        return False, str(error), "reboot the box or reinstall the GPU driver"
    if not gpus:
        return True, "no GPU on this box", ""
    return True, ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus) + f" (driver {gpus[0].driver})", ""


def _shared_memory(box: BoxContext) -> Result:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return True, "no /dev/shm on this system", ""
    size = shutil.disk_usage(shared).total
    enough = size >= MIN_SHARED_BYTES
    return enough, f"/dev/shm has {size / 2**20:.0f} MiB", "" if enough else "give the container a larger /dev/shm"


CHECKS: dict[str, Callable[[BoxContext], Result]] = {
    "python": _python,
    "agent": _agent,
    "locale": _locale,
    "root": _root,
    "umask": _umask,
    "disk": _disk,
    "tmux": _tmux,
    "repo": _repo,
    "engine": _engine,
    "gpus": _gpus,
    "device": _device,
    "shared memory": _shared_memory,
}
