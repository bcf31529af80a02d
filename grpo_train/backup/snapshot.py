"""``manifest.json`` of a snapshot: typed, and read strictly, as anyone may have written it. Where everything lies.

    PREFIX/KIND/NAME--IDENTITY/training_state/step_40--DIGEST/…            files of a checkpoint, as on disk
    PREFIX/KIND/NAME--IDENTITY/logs/rollouts.jsonl/START-END-DIGEST        parts of an append-only file, in order
    PREFIX/KIND/NAME--IDENTITY/files/DIGEST-config.yaml                    every other file
    PREFIX/KIND/NAME--IDENTITY/snapshots/000007/{manifest.json, COMPLETE, READ_BACK}
    PREFIX/weights/NAME--DIGEST/…                                          starting weights, shared by runs

Every key but those of ``snapshots/`` names its content, so an object is never replaced by a different one. A path or
key that is absolute, has ``..`` or appears twice makes the whole manifest unreadable, before anything is written.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from grpo_train.backup.store import check_key
from grpo_train.run_dir import identity
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.safe_json import MAX_FILE_BYTES, Unreadable, open_regular, parse_object

FORMAT = 1
MAX_MANIFEST_BYTES = 256 << 20
"""A million files."""
ARCHIVED_RUNS, ARCHIVED_CHECKPOINTS = "archive/completed_runs", "archive/important_checkpoints"
KINDS = (
    "training_runs", "eval_runs", "sweeps", "rl_runs", ARCHIVED_RUNS, ARCHIVED_CHECKPOINTS,
)  # fmt: skip
"""Folders of the root, and of a store, whose directories are backed up."""
RUNS = (ARCHIVED_RUNS, "training_runs")
"""Those of training runs, which have evaluations. An archived run is newer than what it was before."""
SNAPSHOTS, MANIFEST_NAME, COMPLETE, CLAIM = "snapshots", "manifest.json", "COMPLETE", "claim-"
READ_BACK = "READ_BACK"
MARK, PRUNING = "PRUNE", "PRUNING"
_SOURCES = ("launch.json", "eval_config.yaml", "sweep.json")
"""Files that are written once and identify a directory; the first that exists counts."""
_HOME = re.compile(r"(?s)(.+)--([0-9a-f]{16})")
_UNSAFE = re.compile(r"[^A-Za-z0-9._ +=@()-]")


def check_path(path: str) -> str:
    """A relative path that stays inside its directory. Raises Unreadable."""
    try:
        return check_key(path)
    except UserError as error:
        raise Unreadable(str(error)) from None


Text = Annotated[str, StringConstraints(strict=True, max_length=4096)]
Inside = Annotated[Text, AfterValidator(check_path)]
"""A path or key that stays inside its directory or store."""
Digest = Annotated[str, StringConstraints(strict=True, pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, Field(strict=True, ge=0, le=1 << 50)]
Step = Annotated[int, Field(strict=True, ge=0, lt=10**18)]


@dataclass(frozen=True)
class Part:
    """One object with bytes of a file."""

    key: Inside
    size: Size
    sha256: Digest


@dataclass(frozen=True)
class StoredFile:
    """A file of the run: its parts, joined in order."""

    path: Inside
    """Relative to the run, or to the checkpoint or the weights that it belongs to."""
    mode: Annotated[int, Field(strict=True, ge=0, le=0o777)]
    parts: tuple[Part, ...]
    replaced: tuple[Part, ...] = ()
    """Earlier bytes of an append-only file that it no longer has; kept, so that no pruning can lose them."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


def _from_row(row: Any, read: ValidatorFunctionWrapHandler) -> StoredFile:
    """A file by its row: ``key`` and ``sha256`` where it is one object, ``segments`` where it is joined."""
    if isinstance(row, dict):
        row = {"replaced": [], **row, "parts": [row] if "key" in row else row.get("segments")}
    file: StoredFile = read(row)
    if row.get("size") != file.size:
        raise ValueError(f"{file.path!r}: 'size' differs from the sum of its segments")
    return file


FileOfRow = Annotated[StoredFile, WrapValidator(_from_row)]


@dataclass(frozen=True)
class StoredStep:
    """A checkpoint."""

    step: Step
    digest: Digest
    """SHA-256 of its MANIFEST.json; without one, of the list of its files."""
    path: Inside
    """Where it lay in the run, e.g. ``training_state/step_40``."""
    on_box: StrictBool
    """False: no longer in the run when the snapshot was made."""
    files: tuple[FileOfRow, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class SnapshotLink:
    path: Inside
    target: Inside
    """Relative to the link."""


@dataclass(frozen=True)
class StartingWeights:
    """Starting weights that travel with the run."""

    path: Inside
    """Relative to the root."""
    source: Text
    """As the run names them: the same, or an absolute path outside the root."""
    files: tuple[FileOfRow, ...]


@dataclass(frozen=True)
class Omitted:
    """Something that a command left out, or could not keep as it is."""

    path: Text
    code: Text
    reason: Text


@dataclass(frozen=True)
class Snapshot:
    """What a complete snapshot holds."""

    kind: Text
    name: Inside
    identity: Annotated[str, StringConstraints(strict=True, pattern="^[0-9a-f]{16}$")]
    number: Annotated[int, Field(strict=True, ge=0, le=999_999)]
    time: Text
    """By the clock of the machine that made it; a label."""
    host: Text
    version: Text
    state: Text
    """State of the run when it was made."""
    live: StrictBool
    parent: Text = ""
    """Identity of the run that this one was copied from."""
    training_run: Text = ""
    """Of an evaluation: the run that it evaluated."""
    steps: tuple[StoredStep, ...] = ()
    files: tuple[FileOfRow, ...] = ()
    links: tuple[SnapshotLink, ...] = ()
    log_steps: dict[str, Step] = field(default_factory=dict)
    """Last step in each log."""
    hub: tuple[Text, ...] = ()
    """Models of the hub that the run needs: ``OWNER/NAME@COMMIT``."""
    data: tuple[Text, ...] = ()
    """Paths of data outside the run that it needs; they are not in the snapshot."""
    weights: tuple[StartingWeights, ...] = ()
    evaluations: tuple[Text, ...] = ()
    """Folders of its evaluations in the store: ``NAME--IDENTITY``."""
    omitted: tuple[Omitted, ...] = ()
    dropped: tuple[Text, ...] = ()
    """Digests of checkpoints that ``prune-backups --drop-steps`` took out of the backups."""

    def all_files(self) -> Iterator[StoredFile]:
        yield from self.files
        for group in self.groups():
            yield from group.files

    def groups(self) -> list[StoredStep | StartingWeights]:
        """Directories with files of their own."""
        return [*self.steps, *self.weights]

    def parts(self) -> dict[str, Part]:
        """Every object that this snapshot names, by key."""
        return {part.key: part for file in self.all_files() for part in (*file.parts, *file.replaced)}

    @property
    def size(self) -> int:
        """Bytes in the store."""
        return sum(part.size for part in self.parts().values())

    def to_json(self) -> bytes:
        document = {"format": FORMAT, **asdict(self)}
        document["files"] = [_file_json(file) for file in self.files]
        for row, group in zip([*document["steps"], *document["weights"]], self.groups(), strict=True):
            row["files"] = [_file_json(file) for file in group.files]
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _file_json(file: StoredFile) -> dict[str, Any]:
    """``key`` and ``sha256`` of a file that is one object, ``segments`` of one that is joined."""
    row: dict[str, Any] = {"path": file.path, "size": file.size, "mode": file.mode}
    if len(file.parts) == 1 and not file.replaced:
        return {**row, "sha256": file.parts[0].sha256, "key": file.parts[0].key}
    row["segments"] = [asdict(part) for part in file.parts]
    return {**row, **({"replaced": [asdict(part) for part in file.replaced]} if file.replaced else {})}


# -------------------------------------------------------------------------------------------------------- reading


_OPTIONAL = {"parent", "training_run"}


@functools.cache
def _reader() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def parse_snapshot(data: bytes) -> Snapshot:
    """A manifest. Raises Unreadable with the key that is wrong, for one of a newer format too."""
    row = parse_object(data)
    if row.get("format") != FORMAT:
        raise Unreadable(f"manifest of format {row.get('format')!r:.20}; this version reads {FORMAT}: upgrade grpo-tui")
    if missing := [each.name for each in fields(Snapshot) if each.name not in {*row, *_OPTIONAL}]:
        raise Unreadable(f"'{missing[0]}' is missing")
    try:
        found = _reader().validate_python(row)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Unreadable(f"'{'.'.join(map(str, first['loc']))}': {first['msg']}") from None
    if found.kind not in KINDS:
        raise Unreadable(f"'kind' must be one of {', '.join(KINDS)}")
    if "/" in found.name:
        raise Unreadable("'name' must not contain a slash")
    in_steps = (f"{step.path}/{file.path}" for step in found.steps for file in step.files)
    _check_tree([*(file.path for file in found.files), *in_steps], [link.path for link in found.links])
    _check_tree([f"{group.path}/{file.path}" for group in found.weights for file in group.files], [])
    return found


def _check_tree(files: Iterable[str], links: Iterable[str]) -> None:
    """Raise Unreadable if a path appears twice, or lies below a file or a link."""
    taken: set[str] = set()
    folders: set[str] = set()
    for path in (*files, *links):
        if path in taken:
            raise Unreadable(f"{path!r} appears twice")
        taken.add(path)
        while "/" in path:
            path = path.rpartition("/")[0]
            folders.add(path)
    if wrong := sorted(taken & folders):
        raise Unreadable(f"{wrong[0]!r} is both a file and a directory")


@dataclass(frozen=True)
class Home:
    """The place of one directory of a root in every store."""

    kind: str
    """One of KINDS."""
    name: str
    identity: str
    """16 hex digits."""

    @property
    def prefix(self) -> str:
        """``KIND/NAME--IDENTITY/``."""
        return f"{self.kind}/{self.name}--{self.identity}/"

    @property
    def snapshots(self) -> str:
        return f"{self.prefix}{SNAPSHOTS}/"

    @property
    def twin(self) -> Home | None:
        """Of an archived run: its home before, whose objects it shares."""
        return Home("training_runs", self.name, self.identity) if self.kind == ARCHIVED_RUNS else None

    def snapshot(self, number: int, file: str = "") -> str:
        """Key of a file of a snapshot, or the start of their keys."""
        return f"{self.snapshots}{number:06d}/{file}"


def home_of(kind: str, folder: str) -> Home | None:
    """The home with this folder name in a store; None for a name of another form."""
    match = _HOME.fullmatch(folder)
    hidden = folder.startswith(".") or not folder.isprintable()
    return Home(kind, match[1], match[2]) if match and not hidden else None


def step_key(home: Home, step: int, digest: str, path: str) -> str:
    """Key of a file of a checkpoint; ``digest`` is the SHA-256 of what identifies the checkpoint."""
    return check_key(f"{home.prefix}training_state/step_{step}--{digest[:8]}/{path}")


def segment_key(home: Home, path: str, start: int, end: int, digest: str) -> str:
    """Key of bytes ``start`` to ``end`` of an append-only file. Numbers are padded, so a sorted list is in order."""
    return check_key(f"{home.prefix}{path}/{start:012d}-{end:012d}-{digest[:8]}")


def file_key(home: Home, path: str, digest: str) -> str:
    """Key of any other file; the name at its end is for people."""
    name = _UNSAFE.sub("_", path.rpartition("/")[2])[-128:]
    return check_key(f"{home.prefix}files/{digest[:16]}-{name}")


def weights_prefix(name: str, digest: str) -> str:
    """Start of the keys of starting weights."""
    return check_key(f"weights/{_UNSAFE.sub('_', name)[-128:]}--{digest[:16]}") + "/"


def folder_identity(folder: Path) -> str:
    """Identity of a run, evaluation or sweep: the start of the SHA-256 of its ``launch.json``, ``eval_config.yaml`` or
    ``sweep.json``, else of the sorted list of its paths, sizes and hashes. Raises OSError, Unreadable."""
    for name in _SOURCES:
        try:
            with open_regular(folder / name) as file:
                return identity.identity_of(file.read(MAX_FILE_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return digest_of_list(_listed(folder))[:16]


def digest_of_list(files: Mapping[str, tuple[int, str]]) -> str:
    """SHA-256 of paths with their sizes and hashes, in any order."""
    text = json.dumps(sorted((path, size, digest) for path, (size, digest) in files.items()))
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def _listed(folder: Path) -> dict[str, tuple[int, str]]:
    found = {}
    for path in walk_files(folder):
        if path.is_file() and not path.is_symlink():
            found[os.fspath(path.relative_to(folder))] = (path.stat().st_size, sha256(path))
    return found


def walk_files(folder: Path) -> Iterable[Path]:
    """Every file and link below a directory in a fixed order, without hidden names (what is being written)."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in links)
        yield from (Path(parent, name) for name in sorted([*names, *links]) if not name.startswith("."))
