"""``doctor``: checks whether this box is ready. A finding is green, yellow or red, with what to do about it.

A command that fixes a finding is a value, ``fix``, for a shell on the box; ``hint`` is for people.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from grpo_train.run_dir import ROOT_VARIABLE, RunDir
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.gpus import GpuReadError, describe_problems, query_gpus
from grpo_train.run_dir.machine import (
    PRIVATE,
    account,
    account_file,
    create_command,
    foreign_owner,
    not_readable,
    not_writable,
)
from grpo_train.run_dir.root import DEFAULT_ROOT
from remote.agent import code, from_memory
from remote.agent.box import BoxContext
from remote.agent.engine import ask_engine, find_engine, running_version, training_device
from remote.agent.sessions import Sessions
from remote.protocol.box import DoctorReply, DoctorRequest
from remote.protocol.frames import RemoteError
from remote.protocol.rows import Check

MIN_FREE_BYTES = 5 * 10**9
MIN_TMUX = (3, 2)
MIN_SHARED_BYTES = 64 * 2**20
PLAN_S = 40.0
MAX_LISTED = 50
"""Newest runs whose files are looked at."""
INSTALL_TMUX = "sudo apt-get install -y tmux"


class Finding(NamedTuple):
    """The result of a check."""

    level: str
    """``ok``, ``warning`` or ``error``."""
    detail: str
    hint: str = ""
    fix: str = ""


def doctor(box: BoxContext, request: DoctorRequest) -> DoctorReply:
    """Run every check. Never raises: a check that fails in any way is a result."""
    checks = [_run(name, check, box) for name, check in CHECKS.items()]
    if request.config_text:
        checks.append(_run("checkpoints", lambda box: _checkpoints(box, request), box))
    return {"checks": [{**check} for check in checks], "ok": all(check["ok"] for check in checks)}


def _run(name: str, check: Callable[[BoxContext], Finding], box: BoxContext) -> Check:
    try:
        found = check(box)
    except PermissionError as error:
        found = Finding("error", not_readable(Path(error.filename or box.root)))
    except UserError as error:
        found = Finding("error", str(error), str(getattr(error, "hint", "")), FIXES.get(error.code, _no_fix)(box))
    except Exception as error:
        found = Finding("error", f"{type(error).__name__}: {error}")
    return {"name": name, "ok": found.level == "ok", **found._asdict()}  # type: ignore[typeddict-item]


def _no_fix(box: BoxContext) -> str:
    return ""


def _set_up(box: BoxContext) -> str:
    """The command that installs the engine of a checkout."""
    return f"cd {shlex.quote(str(box.repo))} && make setup-box" if box.repo and box.repo.is_dir() else ""


FIXES: dict[str, Callable[[BoxContext], str]] = {
    "no_engine": _set_up,
    "no_gpu": _set_up,
    "no_tmux": lambda box: INSTALL_TMUX,
}
"""Commands that fix what the box refuses, by the code of the refusal."""


def _python(box: BoxContext) -> Finding:
    return Finding("ok", f"{platform.python_version()} at {sys.executable}")


def _agent(box: BoxContext) -> Finding:
    """Where this agent is stored."""
    if not from_memory.sha256:
        return Finding("ok", f"stored at {sys.argv[0]}")
    reasons = "; ".join(from_memory.problems) or "it was not stored"
    hint = "every connection sends it again; 'agent_dir' in boxes.yaml names a directory that can be written"
    return Finding("ok", f"runs from memory ({reasons})", hint)


def _locale(box: BoxContext) -> Finding:
    return Finding("ok", f"LC_ALL={os.environ.get('LC_ALL', '')} (set by the agent)")


def _root(box: BoxContext) -> Finding:
    """Write a real file: nothing else tells a read-only mount."""
    root = box.root
    if not root.exists():
        parent = next(folder for folder in root.parents if folder.exists())
        if os.access(parent, os.W_OK):
            return Finding("ok", f"{root} does not exist yet and will be created")
        detail = f"{root} does not exist and {parent} is not writable"
        owner = f": it belongs to {name}" if (name := foreign_owner(parent)) else ""
        fix = create_command(root)
        return Finding("error", detail + owner, f"mount it, or on the box: {fix}", fix)
    runs = root / "training_runs"
    folder = runs if runs.is_dir() else root
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".grpo-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except PermissionError:
        hint = "or set another 'root' in boxes.yaml"
        return Finding("error", not_writable(folder), hint, _take_over(folder, foreign_owner(folder)))
    except OSError as error:
        hint = "mount it read-write, or set another 'root' in boxes.yaml"
        return Finding("error", f"{root} is not writable: {error.strerror or error}", hint)
    owner = foreign_owner(folder)
    return Finding("ok", f"{root} (belongs to {owner}, writable for {account()})" if owner else str(root))


def _take_over(path: Path, owner: str) -> str:
    """The command that makes a path writable for this account."""
    place, name = shlex.quote(str(path)), shlex.quote(account().removeprefix("uid "))
    return f"sudo chown -R {name} {place}" if owner else f"chmod -R u+rwX {place}"


def _roots(box: BoxContext) -> Finding:
    """Runs below another root than the configured one: two programs were started with different roots."""
    here = os.path.realpath(box.root)
    others = {os.path.realpath(place): place for place in _usual_roots(box)}
    found = [(place, runs) for real, place in others.items() if real != here and (runs := list(_runs_below(place)))]
    if not found:
        return Finding("ok", f"no runs outside {box.root}")
    place, runs = found[0]
    inside = " (inside the checkout)" if box.repo and place.is_relative_to(box.repo) else ""
    detail = f"{len(runs)} runs are under {place}{inside}, which this box does not use; its root is {box.root}"
    live = [run.name for run in runs[:MAX_LISTED] if run.observed_state().is_live]
    if live:
        return Finding("warning", detail, f"wait until {live[0]} has ended, or set 'root' in boxes.yaml to {place}")
    moves = [
        f"mkdir -p {shlex.quote(str(box.root / kind))} && mv -n {shlex.quote(str(place / kind))}/* "
        f"{shlex.quote(str(box.root / kind))}/"
        for kind in ("training_runs", "eval_runs")
        if any((place / kind).glob("[!.]*"))
    ]
    return Finding("warning", detail, f"move them, or set 'root' in boxes.yaml to {place}", " && ".join(moves))


def _usual_roots(box: BoxContext) -> Iterator[Path]:
    """Where a program that was started without this box's root keeps its runs."""
    if box.repo:
        yield box.repo / "localfs"
    if given := os.environ.get(ROOT_VARIABLE):
        yield Path(given).expanduser().absolute()
    yield Path("~/localfs").expanduser()
    yield DEFAULT_ROOT


def _runs_below(root: Path) -> Iterator[RunDir]:
    try:
        folders = [path for path in (root / "training_runs").glob("[!.]*") if path.is_dir()]
    except OSError:
        return
    for folder in sorted(folders, key=lambda path: path.name, reverse=True):
        yield RunDir(folder)


def _umask(box: BoxContext) -> Finding:
    """What other accounts may do with new runs."""
    umask = int(box.settings.umask or PRIVATE, 8)
    group, others = 0o070 & ~umask, 0o007 & ~umask
    readers = "everyone" if others else "their owner's group" if group else "their owner only"
    return Finding("ok", f"{umask:03o}: new runs are readable by {readers}")


def _owners(box: BoxContext) -> Finding:
    """Own runs with files of another account (a command that ran with sudo), or that others may change."""
    umask = int(box.settings.umask or PRIVATE, 8)
    count = 0
    for run in list(_runs_below(box.root))[:MAX_LISTED]:
        if foreign_owner(run.path):
            continue  # another account's run: the list of runs names the owner
        count += 1
        for path in (run.path, *run.path.glob("*"), *run.path.glob("*/*")):
            if path.is_symlink():
                continue
            if (owner := foreign_owner(path)) and not os.access(path, os.W_OK):
                detail = f"{path} belongs to {owner}, inside a run of {account()}: a resume cannot write it"
                return Finding("warning", detail, "give it back", _take_over(run.path, owner))
            if stat.S_IMODE(path.stat().st_mode) & 0o022 & umask:
                detail = f"{path} can be changed by other accounts, although the umask is {umask:03o}"
                fix = f"chmod -R go-w {shlex.quote(str(run.path))}"
                return Finding("warning", detail, "take the right away", fix)
    return Finding("ok", f"{count} runs belong to {account()}" if count else "no runs yet")


def _secrets(box: BoxContext) -> Finding:
    """Files with secrets that other accounts can read."""
    usual = ("~/.lambda_s3.env", "~/.aws/credentials")
    files = [box.directory / ".env", account_file(), *(Path(file).expanduser() for file in usual)]
    found = [file for file in files if file.is_file() and not foreign_owner(file)]
    exposed = [file for file in found if stat.S_IMODE(file.stat().st_mode) & 0o077]
    if not exposed:
        return Finding("ok", f"{len(found)} files, readable by {account()} only" if found else "no files with secrets")
    names = " ".join(shlex.quote(str(file)) for file in exposed)
    return Finding("warning", f"other accounts can read {names}", "make them private", f"chmod 600 {names}")


def _disk(box: BoxContext) -> Finding:
    folder = next(path for path in (box.root, *box.root.parents) if path.exists())
    usage = shutil.disk_usage(folder)
    detail = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB free under {folder}"
    if usage.free >= MIN_FREE_BYTES:
        return Finding("ok", detail)
    return Finding("error", detail, "free disk space: a checkpoint that does not fit ends the run", _clean(box))


def _clean(box: BoxContext) -> str:
    """The command that removes what killed commands left below the root."""
    try:
        return shlex.join([*find_engine(box).argv, "clean", "--root", str(box.root)])
    except RemoteError:
        return ""


def _checkpoints(box: BoxContext, request: DoctorRequest) -> Finding:
    """The free space against the checkpoints of a config, as the engine estimates them."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(request.config_text)
        file.flush()
        words = [word for override in request.overrides for word in ("--set", override)]
        plan = ask_engine(box, ["plan", "--cfg", file.name, *words], PLAN_S)
    if not isinstance(plan, dict) or "checkpoint_bytes" not in plan:
        return Finding(
            "warning", "unknown: this version of the engine does not estimate their size", "upgrade the engine"
        )
    size, count, free = (plan.get(key) for key in ("checkpoint_bytes", "checkpoints", "free_bytes"))
    if not (isinstance(size, int) and isinstance(count, int) and isinstance(free, int)):
        hint = "launch it once, or put the model there (grpo-train fetch-model), and run doctor again"
        return Finding("warning", "unknown: their size depends on the model, which is not on this box yet", hint)
    kept = f"{count} x {size / 1e9:.2f} GB, {free / 1e9:.1f} GB free"
    if size * count <= free:
        return Finding("ok", kept)
    hint = "set run.keep_last in the config, or free disk space"
    # A save is written beside the one that it replaces.
    return Finding("error" if 2 * size > free else "warning", f"they do not fit: {kept}", hint, _clean(box))


def _tmux(box: BoxContext) -> Finding:
    Sessions(box).require()
    Sessions(box).require_none_lost()
    path = shutil.which("tmux") or "tmux"
    output = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10).stdout.strip()
    version = re.search(r"(\d+)\.(\d+)", output)
    if version and (int(version[1]), int(version[2])) < MIN_TMUX:
        return Finding("error", f"{output} at {path}", f"install 3.2a or newer: {INSTALL_TMUX}", INSTALL_TMUX)
    return Finding("ok", f"{output} at {path}, {len(Sessions(box).rows())} sessions")


def _repo(box: BoxContext) -> Finding:
    synced = code.current(box)
    if box.repo is None:
        return Finding(
            "ok", "no checkout is configured for this box", "bring one: grpo-tui sync, or set 'repo' in boxes.yaml"
        )
    if not (box.repo / "config").is_dir():
        return Finding("error", f"{box.repo} has no config directory", "correct 'repo' in boxes.yaml")
    return Finding("ok", f"{box.repo}, synced: {synced}" if synced else str(box.repo))


def _engine(box: BoxContext) -> Finding:
    engine = find_engine(box)
    version = running_version(box, engine)
    if mismatch := version.mismatch():
        folder = shlex.quote(str(box.repo))
        fix = f"cd {folder} && git pull && make setup-box" if box.repo and version.is_older else ""
        return Finding("error", mismatch, version.upgrade_hint(str(box.repo or "")), fix)
    return Finding("ok", f"{version.version or 'unknown version'}, {engine.argv[-1]} (from {engine.reason})")


def _device(box: BoxContext) -> Finding:
    """Whether torch sees the GPUs."""
    try:
        engine = find_engine(box)
    except RemoteError:
        return Finding("ok", "unknown without an engine")
    return Finding("ok", training_device(box, engine) or "not reported by this version of the engine")


def _gpus(box: BoxContext) -> Finding:
    try:
        gpus = query_gpus(processes=False)
    except GpuReadError as error:
        return Finding("error", str(error), "reboot the box or reinstall the GPU driver", "sudo reboot")
    if not gpus:
        return Finding("ok", "no GPU on this box")
    well = [gpu for gpu in gpus if not gpu.problem]
    seen = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in well) + (f" (driver {well[0].driver})" if well else "")
    if problem := describe_problems(gpus):
        others = f"; the others: {seen}" if well else ""
        return Finding("error", problem + others, "stop the runs, then reboot the box", "sudo reboot")
    return Finding("ok", seen)


def _shared_memory(box: BoxContext) -> Finding:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return Finding("ok", "no /dev/shm on this system")
    size = shutil.disk_usage(shared).total
    detail = f"/dev/shm has {size / 2**20:.0f} MiB"
    if size >= MIN_SHARED_BYTES:
        return Finding("ok", detail)
    return Finding("warning", detail, "give the container a larger /dev/shm", "sudo mount -o remount,size=1G /dev/shm")


CHECKS: dict[str, Callable[[BoxContext], Finding]] = {
    "python": _python,
    "agent": _agent,
    "locale": _locale,
    "root": _root,
    "roots": _roots,
    "umask": _umask,
    "owners": _owners,
    "secrets": _secrets,
    "disk": _disk,
    "tmux": _tmux,
    "repo": _repo,
    "engine": _engine,
    "gpus": _gpus,
    "device": _device,
    "shared memory": _shared_memory,
}
