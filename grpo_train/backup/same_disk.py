"""Whether a store keeps its objects on the disk that a root is on.

A store may be another way into the same file system: Lambda's S3 adapter serves the NFS mount of the box, a second
mount shows the same export. So a file with a random name is written on either side and looked for on the other.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from grpo_train.run_dir.files import stat_of
from grpo_train.run_dir.machine import read_mounts

MARKER = "grpo-marker-"
_MAX_FOLDERS = 1_000
"""Folders at the top of a mount in which a marker is looked for."""


def marker_name() -> str:
    """A new name that no file has."""
    return MARKER + secrets.token_hex(16)


def on_same_device(one: Path, other: Path) -> bool:
    """Whether two existing directories are on one file system or one physical disk."""
    return bool(_disks(one) & _disks(other))


def appears_below(folder: Path, location: str) -> bool:
    """Whether an object appears as a file around ``folder``, which need not exist.

    ``location``: bucket (or the store's directory), prefix and key. The file system of ``folder`` may show it at its
    top or in a folder there, with or without the leading parts of the location.
    """
    names = list(_tails(location))
    return any(shows(place, name) for place in _places(folder) for name in names)


def shows(place: Path, name: str) -> bool:
    """Whether a directory shows a file, and not through another mount below it."""
    file, here = stat_of(place / name), stat_of(place)
    return file is not None and here is not None and file.st_dev == here.st_dev


def names_in_store(marker: Path) -> list[str]:
    """Keys under which a store that serves the file system of ``marker`` would have it."""
    top = mount_point(marker.parent)
    return list(_tails(str(Path(top.name) / marker.relative_to(top))))


def mount_point(folder: Path) -> Path:
    """The mount point of an existing directory's file system."""
    folder = folder.resolve()
    while not os.path.ismount(folder):
        folder = folder.parent
    return folder


def existing(folder: Path) -> Path:
    """The directory, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _tails(location: str) -> Iterator[str]:
    """``a/b/c``, ``b/c``, ``c``."""
    names = [name for name in location.split("/") if name]
    for start in range(len(names)):
        yield "/".join(names[start:])


def _places(folder: Path) -> Iterator[Path]:
    """The directories from ``folder`` up to its mount point, and the folders at the top of the mount."""
    here = existing(folder).resolve()
    top = mount_point(here)
    while here != top:
        yield here
        here = here.parent
    yield top
    with suppress(OSError), os.scandir(top) as items:  # another account's root
        for _, item in zip(range(_MAX_FOLDERS), items, strict=False):
            if item.is_dir(follow_symlinks=False) and not os.path.ismount(item.path):
                yield Path(item.path)


def _disks(folder: Path) -> set[str]:
    """What a directory is stored on: its device, what it is mounted from, and the physical disks below."""
    facts = os.stat(folder)
    found = {f"device {facts.st_dev}"}
    number = f"{os.major(facts.st_dev)}:{os.minor(facts.st_dev)}"
    for source in _mount_sources(number):
        found.add(f"source {source}")
        if device := stat_of(source):
            found |= _physical(f"{os.major(device.st_rdev)}:{os.minor(device.st_rdev)}")
    return found | _physical(number)


def _mount_sources(number: str) -> Iterator[str]:
    """What a device is mounted from, such as ``/dev/sda1`` or ``server:/export``; not ``tmpfs`` and the like."""
    return (mount.source for mount in read_mounts() if mount.device == number and "/" in mount.source)


def _physical(number: str) -> set[str]:
    """The disks below a block device: of a partition its disk, of a mapped device those it maps to."""
    folder = Path("/sys/dev/block", number)
    if not folder.exists():
        return set()
    folder = folder.resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    found = {f"disk {folder.name}"}
    for slave in (folder / "slaves").glob("*"):
        found |= _physical((slave / "dev").read_text().strip())
    return found
