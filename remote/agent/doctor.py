"""``doctor``: is this box ready, and if not, the one thing to do about each point."""

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
from typing import Any

from remote.agent.context import Place, find_engine, verify_engine
from remote.agent.sessions import Sessions, no_tmux
from remote.agent.watch import gpu_value
from remote.protocol import RemoteError

LEAST_FREE_BYTES = 5 * 10**9
LEAST_TMUX = (3, 2)

Finding = dict[str, Any]


def doctor(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """{"checks": [{"name", "ok", "detail", "hint"}], "ok"}. Never raises: a check that fails is a finding."""
    checks = [_guarded(name, check, place) for name, check in CHECKS.items()]
    return {"checks": checks, "ok": all(check["ok"] for check in checks)}


def _guarded(name: str, check: Callable[[Place], tuple[bool, str, str]], place: Place) -> Finding:
    try:
        ok, detail, hint = check(place)
    except RemoteError as error:
        ok, detail, hint = False, error.message, error.hint
    except Exception as error:
        ok, detail, hint = False, f"{type(error).__name__}: {error}", ""
    return {"name": name, "ok": ok, "detail": detail, "hint": hint}


def _python(place: Place) -> tuple[bool, str, str]:
    return True, f"{platform.python_version()} at {sys.executable}", ""


def _locale(place: Place) -> tuple[bool, str, str]:
    return True, f"LC_ALL={os.environ.get('LC_ALL', '')} (set by the agent)", ""


def _root(place: Place) -> tuple[bool, str, str]:
    """Write, rename and remove a real file: a read-only mount says yes to everything else."""
    root = place.root
    if not root.exists():
        parent = next(folder for folder in root.parents if folder.exists())
        if os.access(parent, os.W_OK):
            return True, f"{root} does not exist yet and will be made", ""
        return False, f"{root} does not exist and {parent} cannot be written", "mount it, or set 'root' in boxes.yaml"
    try:
        with tempfile.NamedTemporaryFile(dir=root, prefix=".grpo-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return (
            False,
            f"{root} cannot be written: {error.strerror or error}",
            "mount it read-write, or set another 'root' in boxes.yaml",
        )
    return True, str(root), ""


def _disk(place: Place) -> tuple[bool, str, str]:
    folder = next(path for path in (place.root, *place.root.parents) if path.exists())
    usage = shutil.disk_usage(folder)
    detail = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB below {folder}"
    enough = usage.free >= LEAST_FREE_BYTES
    return enough, detail, "" if enough else "free some space: a checkpoint that does not fit ends the run"


def _tmux(place: Place) -> tuple[bool, str, str]:
    path = shutil.which("tmux")
    if not path:
        raise no_tmux()
    words = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10).stdout.strip()
    version = re.search(r"(\d+)\.(\d+)", words)
    if version and (int(version[1]), int(version[2])) < LEAST_TMUX:
        return False, f"{words} at {path}", "3.2a or newer is needed: sudo apt-get install -y tmux"
    count = len(Sessions(place).rows())
    return True, f"{words} at {path}, {count} sessions", ""


def _repo(place: Place) -> tuple[bool, str, str]:
    if place.repo is None:
        return True, "no checkout is set for this box", "set 'repo' in boxes.yaml to see its configs"
    if not (place.repo / "config").is_dir():
        return False, f"{place.repo} has no config directory", "correct 'repo' in boxes.yaml"
    return True, str(place.repo), ""


def _engine(place: Place) -> tuple[bool, str, str]:
    engine = find_engine(place)
    verify_engine(place, engine)
    return True, f"{engine.argv[-1]} ({engine.how})", ""


def _gpus(place: Place) -> tuple[bool, str, str]:
    value = gpu_value()
    names = [f"{gpu['index']}: {gpu['name']}" for gpu in value["gpus"]]
    if names:
        return True, ", ".join(names), ""
    broken = value["note"].startswith("nvidia-smi fails")
    return not broken, value["note"], "reboot the box or reinstall its driver" if broken else ""


def _memory(place: Place) -> tuple[bool, str, str]:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return True, "no /dev/shm on this system", ""
    size = shutil.disk_usage(shared).total
    enough = size >= 64 * 2**20
    return enough, f"/dev/shm has {size / 2**20:.0f} MiB", "" if enough else "give the container a larger /dev/shm"


CHECKS: dict[str, Callable[[Place], tuple[bool, str, str]]] = {
    "python": _python,
    "locale": _locale,
    "root": _root,
    "disk": _disk,
    "tmux": _tmux,
    "repo": _repo,
    "engine": _engine,
    "gpus": _gpus,
    "shared memory": _memory,
}
