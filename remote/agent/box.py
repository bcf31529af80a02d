"""The box as one client configured it: environment, root, checkout; its machine, and a cheap look at its root.

The signature has the size, times and inode of every file, and reads none. Of a checkpoint it has the directory alone:
that gets its name when it is complete, and does not change from then on.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_train.run_dir import ROOT_VARIABLE, RunDir, resolve_root
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.machine import PRIVATE, UMASK_VARIABLE
from grpo_train.run_dir.manifest import STEP_NAME
from grpo_train.run_dir.rows import printable
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES
from grpo_train.run_dir.status import observe
from remote.protocol import Settings
from remote.protocol.box import BoxFactsReply, BoxFactsRequest
from remote.protocol.grants import Grant

PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "TMUX_TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "SLURM_CONF"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""Variables kept besides PATH: what the agent, and so a run, may need. No tokens."""
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")
USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's PATH (or a usual one where it is empty), the variables in PASSED_ON, and a UTF-8 locale."""
    given = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    path = given or (USUAL_PATH if os.name == "posix" else ())
    kept = {name: environment[name] for name in PASSED_ON if name in environment}
    return {"PATH": os.pathsep.join(path), **kept, "LC_ALL": "C.UTF-8"}


def expand(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as a shell would assign them, one after the other.

    ``~`` at the beginning and after ``:`` is a home directory, ``$NAME`` and ``${NAME}`` are what is set (else ""),
    ``$$`` is a dollar sign.
    """
    known = dict(environment)
    for name, value in variables.items():
        value = ":".join(os.path.expanduser(part) for part in value.split(":"))
        known[name] = _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else known.get(m[1] or m[2], ""), value)
    return {name: known[name] for name in variables}


@dataclass(frozen=True)
class BoxContext:
    """One box as one client sees it."""

    settings: Settings
    root: Path
    given_repo: Path | None
    """``repo`` of boxes.yaml."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """``env`` of boxes.yaml, expanded on this box."""
    worktree: Path | None = None
    """The working tree that a session imports (:mod:`remote.agent.code`)."""
    clock: Clock = CLOCK
    grant: Grant | None = None
    """What an assistant may do; None = a person's session."""

    @classmethod
    def from_settings(cls, settings: dict[str, Any], clock: Clock = CLOCK) -> BoxContext:
        """From the settings of a hello; unknown keys (of a newer client) are ignored."""
        known = Settings(**{key: value for key, value in settings.items() if key in Settings.__dataclass_fields__})
        repo = Path(known.repo).expanduser() if known.repo else None
        grant = Grant.from_json(known.grant) if known.grant else None
        return cls(known, resolve_root(known.root or None), repo, expand(known.env, os.environ), None, clock, grant)

    @property
    def is_synced(self) -> bool:
        """Whether the code comes from ``grpo-tui sync``: with ``code: sync``, and where boxes.yaml names no code."""
        settings = self.settings
        return settings.code == "sync" or not (settings.code or settings.repo)

    @property
    def synced_checkout(self) -> Path:
        """Where ``grpo-tui sync`` has its checkout."""
        return self.given_repo or Path("~/.grpo/code").expanduser()

    @property
    def repo(self) -> Path | None:
        """The checkout with the configs and the engine; None where none is known."""
        found = self.synced_checkout
        return found if self.given_repo or self.settings.code == "sync" or found.is_dir() else None

    @property
    def directory(self) -> Path:
        """Working directory of the engine's commands: the working tree or the checkout, else the root."""
        return self.worktree or (self.repo if self.repo and self.repo.is_dir() else self.root)

    def at(self, worktree: Path) -> BoxContext:
        """This box for a session that imports a working tree."""
        return replace(self, worktree=worktree)

    def session_environment(self) -> dict[str, str]:
        """Variables added to a session. They appear in tmux's command line, so no secret belongs here."""
        own = {ROOT_VARIABLE: str(self.root), UMASK_VARIABLE: self.settings.umask or PRIVATE}
        if self.worktree is not None:
            users = self.variables.get("PYTHONPATH")
            own["PYTHONPATH"] = f"{self.worktree}{os.pathsep}{users}" if users else str(self.worktree)
        return {**self.variables, **own}

    def relative(self, path: Path) -> str:
        """A path relative to the root, where it is inside; else as it is."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)


FIRST_S = 0.1
"""Between the two looks at the processor of a first request …"""
OLD_S = 60.0
"""… and of one that comes this long after the last."""
_PROC = Path("/proc")
_last: tuple[float, int, int] | None = None
"""When the processor was looked at last, and its busy and whole time in ticks."""


def box_facts(box: BoxContext, request: BoxFactsRequest) -> BoxFactsReply:
    """What can be read; the rest is None (macOS has no /proc)."""
    used, total = _memory()
    return {
        "cpu_percent": _cpu_percent(box.clock),
        "cpu_count": os.cpu_count(),
        "memory_used_mib": used,
        "memory_total_mib": total,
        "uptime_s": _uptime(),
        "disks": _disks(box),
    }


def _cpu_percent(clock: Clock) -> float | None:
    """Share of all processors that was busy since the last request."""
    global _last
    try:
        if _last is None or clock.monotonic() - _last[0] > OLD_S:
            _last = _ticks(clock)
            clock.sleep(FIRST_S)
        now, before = _ticks(clock), _last
    except (OSError, ValueError):
        return None
    whole = now[2] - before[2]
    if whole <= 0:
        return None
    _last = now
    return min(100.0, max(0.0, 100.0 * (now[1] - before[1]) / whole))


def _ticks(clock: Clock) -> tuple[float, int, int]:
    values = [int(text) for text in (_PROC / "stat").read_text().partition("\n")[0].split()[1:9]]
    return clock.monotonic(), sum(values) - values[3] - values[4], sum(values)  # without idle and waiting for a disk


def _memory() -> tuple[float | None, float | None]:
    """Used and whole memory in MiB; caches are not used."""
    try:
        rows = dict(line.split(":", 1) for line in (_PROC / "meminfo").read_text().splitlines())
        total, free = (float(rows[name].split()[0]) / 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        return None, None
    return max(0.0, total - free), total


def _uptime() -> float | None:
    try:
        return float((_PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError):
        return None


def _disks(box: BoxContext) -> list[dict[str, Any]]:
    """The file systems of the root, of / and of the home directory, each once."""
    found: dict[int, dict[str, Any]] = {}
    for what, place in (("root", box.root), ("system", Path("/")), ("home", Path.home())):
        folder = next(path for path in (place, *place.parents) if path.exists())
        try:
            device, usage = os.stat(folder).st_dev, shutil.disk_usage(folder)
        except OSError:
            continue
        row = {"path": str(place), "what": what, "used": usage.total - usage.free, "total": usage.total}
        found.setdefault(device, row)
    return list(found.values())


KINDS = (
    "training_runs", "eval_runs", "sweeps", "rl_runs", "archive/completed_runs", "archive/important_checkpoints",
)  # fmt: skip
"""The directories of a root that are backed up, as in :mod:`grpo_train.backup.snapshot`."""
TRANSFERS = "transfers"


@dataclass(frozen=True)
class RootLook:
    signature: str
    live: tuple[dict[str, Any], ...]
    """ObstacleRow of each run, evaluation and transfer at work."""


def look_at(root: Path) -> RootLook:
    """Look at a root, and at the descriptions of its backups. A directory that cannot be read is part of the look."""
    digest = hashlib.sha256()
    live: list[dict[str, Any]] = []
    for kind in (*KINDS, TRANSFERS):
        for entry in _entries(root / kind, digest.update):
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            if (state := _live_state(kind, Path(entry.path))) is not None:
                live.append(_live_row(kind, entry.name, state))
            _add(digest.update, entry, kind != "eval_runs")
    for file in _descriptions():
        digest.update(_facts(str(file), file))
    return RootLook(digest.hexdigest(), tuple(live))


def _live_state(kind: str, folder: Path) -> str | None:
    """State of something at work; None for what is not, or cannot be read (the engine names that)."""
    try:
        if kind == "training_runs":
            observed = RunDir(folder).observed_state()
        else:
            row = read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True)
            observed = observe(row or {})
            if kind == TRANSFERS and observed.is_live:
                return printable(str((row or {}).get("command")))[:64]
    except (UserError, OSError):
        return None
    return printable(observed.state) if observed.is_live else None


def _live_row(kind: str, name: str, state: str) -> dict[str, Any]:
    shown = printable(name)
    if kind == TRANSFERS:
        return {
            "kind": kind, "name": shown.partition(".")[2] or shown, "code": "live", "reason": f"its {state} is at work",
            "command": "",
        }  # fmt: skip
    return {"kind": kind, "name": shown, "code": "live", "reason": f"it is {state}", "command": ""}


def _add(update: Callable[[bytes], object], entry: os.DirEntry[str], has_checkpoints: bool) -> None:
    """Add an entry and all below it to a digest."""
    update(_facts(entry.path, entry))
    if not entry.is_dir(follow_symlinks=False) or (has_checkpoints and STEP_NAME.fullmatch(entry.name)):
        return
    for each in _entries(Path(entry.path), update):
        _add(update, each, has_checkpoints)


def _entries(folder: Path, update: Callable[[bytes], object]) -> list[os.DirEntry[str]]:
    """The entries of a directory by name; [] for one that is missing or cannot be read, which is added."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        update(f"{folder}\0{error.errno}\0".encode(errors="surrogateescape"))
        return []


def _facts(name: str, file: os.DirEntry[str] | Path) -> bytes:
    try:
        facts = file.stat(follow_symlinks=False)
    except OSError as error:
        return f"{name}\0{error.errno}\0".encode(errors="surrogateescape")
    values = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
    return f"{name}\0{values}\0".encode(errors="surrogateescape")


def _descriptions() -> Iterator[Path]:
    """The files that describe where backups go, on this machine."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    yield Path(config).expanduser() / "grpo-tui" / "backup.yaml"
    yield Path("~/.lambda_s3.env").expanduser()
