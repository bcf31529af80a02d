"""Where indexes are kept: a private folder of this account, bounded in size.

An index belongs to one boot of one host: what a power failure leaves of unsynced files is never read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from remote.index.store import VERSION, Busy, Store, Unwritable

MAX_BYTES = 2 << 30
"""Of all indexes; at most a quarter of what they and the free disk have together."""
MIN_FREE = 128 << 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def places(bundle: Path) -> list[Path]:
    """Folders for indexes, the preferred one first. ``bundle``: the running program."""
    environment, user = os.environ, os.geteuid()
    found = [
        Path(environment["HOME"], ".grpo", "index") if environment.get("HOME") else None,
        bundle.parent.parent / "index" if bundle.is_file() else None,
        Path(environment["XDG_RUNTIME_DIR"], "grpo-index") if environment.get("XDG_RUNTIME_DIR") else None,
        Path(tempfile.gettempdir(), f"grpo-index-{user}"),
        Path("/dev/shm", f"grpo-index-{user}"),
    ]
    return [place for place in found if place is not None]


def check(place: Path) -> None:
    """Make a folder for indexes. Raises Unwritable unless it is this account's own and has room."""
    try:
        place.mkdir(0o700, parents=True, exist_ok=True)
        facts = os.lstat(place)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise Unwritable(f"{place} is not a directory of this account")
        if facts.st_mode & 0o077:
            place.chmod(0o700)
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise Unwritable(f"{place}: {error.strerror}") from error
    if free < MIN_FREE:
        raise Unwritable(f"{place}: less than {MIN_FREE >> 20} MiB are free")


def folder_name(kind: str, device: int, inode: int) -> str:
    """Name of the folder of a log's index."""
    try:
        boot = _BOOT.read_text()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{VERSION} {kind} {device} {inode} {boot}".encode()).hexdigest()[:32]


def prune(place: Path, limit: int = MAX_BYTES) -> None:
    """Remove the indexes used longest ago until the rest is within the limit, but none that is in use."""
    sizes: dict[Path, int] = {}
    for folder in place.iterdir():
        with suppress(OSError):
            sizes[folder] = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    total = sum(sizes.values())
    limit = min(limit, (total + shutil.disk_usage(place).free) // 4)
    for folder in sorted(sizes, key=_used):
        if total <= limit:
            return
        with suppress(OSError, Busy):
            with Store(folder, wait_s=0).locked():
                shutil.rmtree(folder)
            total -= sizes[folder]


def _used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
