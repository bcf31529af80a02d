"""Fetching starting weights from any prefix of a bucket, or from a directory."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.backup.direct import DirectFile
from grpo_train.backup.folder import FolderStore
from grpo_train.backup.job import CommandProgress, OnProgress, working_on
from grpo_train.backup.store import ObjectStore, RateLimit, StoredObject, StoreError, check_key
from grpo_train.backup.transfer import TRANSFERS, check_space, for_each
from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.files import fsync_path, open_for_writing, sync_tree
from grpo_train.run_dir.manifest import MANIFEST, problem_of
from grpo_train.run_dir.safe_json import Unreadable

if TYPE_CHECKING:
    from grpo_train.backup.backup_yaml import Bucket

_MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class FetchResult:
    """Outcome of :func:`fetch`."""

    path: str
    source: str
    files: int
    bytes: int
    checked: str
    """``manifest`` (every SHA-256), or ``headers`` (sizes, and the headers of safetensors files)."""


def store_of_url(url: str, access: Bucket | None, limit: RateLimit | None = None) -> tuple[ObjectStore, str]:
    """The store and prefix of ``s3://bucket/prefix/`` (with the credentials of a destination) or of a directory.

    Raises StoreError, AccessError.
    """
    match = re.fullmatch(r"s3://([^/]+)/?(.*)", url)
    if not match:
        folder = Path(url).expanduser()
        if not folder.is_dir():
            raise StoreError(f"{url}: neither s3://BUCKET/PREFIX/ nor a directory", code="bad_name")
        return FolderStore(folder.absolute(), limit), ""
    from grpo_train.backup.access import find_access
    from grpo_train.backup.s3 import S3Store

    store = S3Store(
        find_access(access.credentials if access else ""),
        bucket=match[1],
        endpoint=access.endpoint if access else "",
        region=access.region if access else "",
        ca_file=access.ca_file if access else "",
        limit=limit,
    )
    return store, f"{match[2].strip('/')}/" if match[2].strip("/") else ""


def fetch(
    root: Path,
    store: ObjectStore,
    prefix: str,
    target: Path,
    *,
    transfers: int = TRANSFERS,
    show: OnProgress | None = None,
) -> FetchResult:
    """Fetch every object below a prefix into a new directory, checked before it becomes visible.

    Rerun it to continue: files that arrived with their size are kept. Raises RunDirError (``name_taken``,
    ``disk_full``), StoreError (``missing``, ``damaged``), OSError.
    """
    if os.path.lexists(target):
        raise RunDirError(f"{target} exists; choose another --to", code="name_taken")
    with working_on(root, "fetch", target.name, "fetch", store.url, show) as job:
        job.update(phase="listing")
        found = {check_key(entry.key.removeprefix(prefix)): entry for entry in store.entries(prefix)}
        if not found:
            raise StoreError(f"{store.url}/{prefix}: no objects there", code="missing")
        staging = target.with_name(f".fetch-{target.name}")
        wanted = {name: entry for name, entry in found.items() if not _has(staging / name, entry.size)}
        target.parent.mkdir(parents=True, exist_ok=True)
        check_space(target.parent, sum(entry.size for entry in wanted.values()))
        job.update(phase="reading", files_total=len(wanted), bytes_total=sum(entry.size for entry in wanted.values()))
        for_each(lambda name: _fetch_one(store, wanted[name], staging / name, job), wanted, transfers)
        job.update(phase="proving")
        checked = check_weights_folder(staging)
        sync_tree(staging)
        staging.rename(target)
        fsync_path(target.parent)
    size = sum(entry.size for entry in found.values())
    return FetchResult(os.fspath(target), f"{store.url}/{prefix}", len(found), size, checked)


def check_weights_folder(folder: Path) -> str:
    """Check weights against a manifest or their headers; returns which. Damaged files are removed, to be fetched again.

    Raises StoreError (``damaged``).
    """
    if (folder / MANIFEST).exists():
        if problem := problem_of(folder, deep=True):
            name = problem.split(" ", 1)[0]
            (folder / name).unlink(missing_ok=True)
            raise StoreError(f"{folder}: {problem}", code="damaged")
        return "manifest"
    for file in sorted(folder.rglob("*.safetensors")):
        try:
            check_safetensors(file)
        except Unreadable as error:
            file.unlink()
            raise StoreError(f"{file}: {error}", code="damaged") from None
    return "headers"


def check_safetensors(file: Path) -> None:
    """Check that the header of a safetensors file describes the bytes after it. Raises Unreadable, OSError."""
    size = file.stat().st_size
    with file.open("rb") as read:
        length = int.from_bytes(read.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise Unreadable("not a safetensors file, or cut off")
        try:
            header = json.loads(read.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            raise Unreadable("its safetensors header is damaged") from None
    described, there = max(ends, default=0), size - 8 - length
    if described != there:
        raise Unreadable(f"its header describes {described} bytes of tensors, and {there} follow")


def _has(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


def _fetch_one(store: ObjectStore, entry: StoredObject, target: Path, job: CommandProgress) -> None:
    """Fetch one object under a partial name. Raises StoreError, OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    with DirectFile(open_for_writing(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL), entry.size) as output:
        for chunk in store.read(entry.key):
            output.write(chunk)
            job.add(moved=len(chunk))
        output.flush()
    if output.tell() != entry.size:
        raise StoreError(f"{entry.key}: {output.tell()} bytes instead of {entry.size}", code="damaged")
    os.replace(partial, target)
    job.add(files=1, what=target.name)
