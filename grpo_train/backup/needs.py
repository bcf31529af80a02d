"""What a run needs besides its directory: models of the hub by commit; weights, data and code of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.backup.collect import LocalFile, read_step
from grpo_train.backup.record import BackupRecord
from grpo_train.backup.snapshot import walk_files
from grpo_train.config.yaml_text import read_plain_config
from grpo_train.policy.locate import PolicyError, base_of_checkpoint, resolve_backbone
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.manifest import MANIFEST, sha256
from grpo_train.run_dir.safe_json import Unreadable


@dataclass(frozen=True)
class LocalWeights:
    """Starting weights on this machine."""

    folder: Path
    path: str
    """Where a restore puts them, relative to the root."""
    source: str
    """As the run names them."""
    files: tuple[LocalFile, ...]


@dataclass(frozen=True)
class BackupNeeds:
    hub: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    weights: tuple[LocalWeights, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """(path, reason) of starting weights that cannot be read."""


def needs_of(run: RunDir, record: BackupRecord) -> BackupNeeds:
    """What a training run needs; nothing for what its config cannot say. Raises OSError."""
    config = read_plain_config(run.config_file)
    hub: list[str] = []
    weights: list[LocalWeights] = []
    missing: list[tuple[str, str]] = []
    for source in dict.fromkeys(_sources(run, config)):
        folder = run.root / source
        if not folder.is_dir():
            (missing.append((source, "it does not exist")) if source.startswith("/") else hub.append(source))
            continue
        if run.path in (folder, *folder.parents):
            continue  # its own checkpoint
        try:
            weights.append(_weights(folder, source, record))
        except (OSError, Unreadable) as error:  # another account's model; a damaged one
            missing.append((source, str(error)))
    task = config.get("task")
    found = task.get("parts", [task]) if isinstance(task, dict) else []
    parts = found if isinstance(found, list) else []
    sections = [part for part in parts if isinstance(part, dict)]
    data = [part["path"] for part in sections if isinstance(part.get("path"), str)]
    code = (file for named in (*sections, config.get("algorithm"), config.get("rollout")) for file in _own_files(named))
    return BackupNeeds(tuple(hub), tuple(dict.fromkeys([*data, *code])), tuple(weights), tuple(missing))


def _own_files(section: Any) -> Iterator[str]:
    """The files of the user's functions that a section of a resolved config names."""
    values = section if isinstance(section, dict) else {}
    rewards = values.get("rewards")
    names = [values.get(key) for key in ("name", "grader", "loss_type", "backend")]
    named = (*names, *(rewards if isinstance(rewards, list) else ()))
    files = [name.rpartition(":")[0] for name in named if isinstance(name, str)]
    if own := [file for file in files if file.endswith(".py")]:
        from grpo_train.rewards.signatures import TRL_PREFIX  # with the schema of configs, a third of a second

        yield from (file.removeprefix(TRL_PREFIX) for file in own)


def _sources(run: RunDir, config: dict[str, Any]) -> Iterator[str]:
    """Hub names and directories, relative to the root where they are inside it."""
    model = config.get("model")
    backbone = model.get("backbone") if isinstance(model, dict) else None
    newest = max((c for c in run.checkpoints() if not c.problem), key=lambda c: c.step, default=None)
    recorded = base_of_checkpoint(newest.path, run.root) if newest else None
    if isinstance(name := recorded or backbone, str) and name:
        try:
            resolved = resolve_backbone(name, run.root)
            yield _relative(os.path.abspath(resolved) if os.path.isdir(resolved) else resolved, run.root)
        except PolicyError:  # a directory that was moved since the run started
            yield name
    ckpt = run.read_launch().get("ckpt")
    if isinstance(ckpt, str) and ckpt:
        yield _relative(os.fspath(run.root / ckpt), run.root)


def _relative(path: str, root: Path) -> str:
    return os.path.relpath(path, root) if path.startswith(f"{root}/") else path


def _weights(folder: Path, source: str, record: BackupRecord) -> LocalWeights:
    """A directory of weights, each file hashed, or known from its manifest. Raises OSError, Unreadable."""
    path = f"checkpoints/{folder.name}" if source.startswith("/") else source
    if folder.name == "model" and (folder.parent / MANIFEST).exists():
        folder, path = folder.parent, os.path.dirname(path) or folder.parent.name
    if (folder / MANIFEST).exists():
        step = read_step(folder.parent, folder.name)
        return LocalWeights(folder, path, source, step.files)
    files = []
    for file in walk_files(folder):
        if file.is_file():
            facts = file.stat()
            name = os.fspath(file.relative_to(folder))
            digest = _hash_once(file, facts, record)
            files.append(LocalFile(name, facts.st_size, facts.st_mode & 0o777, digest))
    return LocalWeights(folder, path, source, tuple(files))


def _hash_once(file: Path, facts: os.stat_result, record: BackupRecord) -> str:
    """SHA-256 of a file, hashed again only if the file system says that it changed."""
    stamp = [facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns]
    known = record.hashes.get(os.fspath(file))
    if known and known[:4] == stamp and isinstance(known[4], str):
        return known[4]
    digest = sha256(file)
    record.hashes[os.fspath(file)] = [*stamp, digest]
    return digest
