"""``manifest.json`` of a snapshot: typed, and read strictly, as anyone may have written it.

A path or key that is absolute, has ``..`` or appears twice makes the whole manifest unreadable, before anything is
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_train.backup.layout import KINDS
from grpo_train.backup.store import check_key
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.safe_json import Unreadable, parse_object, type_name

FORMAT = 1
MAX_MANIFEST_BYTES = 256 << 20
"""A million files."""
_HEX = frozenset("0123456789abcdef")
_MAX_SIZE = 1 << 50


@dataclass(frozen=True)
class Part:
    """One object with bytes of a file."""

    key: str
    size: int
    sha256: str


@dataclass(frozen=True)
class StoredFile:
    """A file of the run: its parts, joined in order."""

    path: str
    """Relative to the run, or to the checkpoint or the weights that it belongs to."""
    mode: int
    parts: tuple[Part, ...]
    replaced: tuple[Part, ...] = ()
    """Earlier bytes of an append-only file that it no longer has; kept, so that no pruning can lose them."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class StoredStep:
    """A checkpoint."""

    step: int
    digest: str
    """SHA-256 of its MANIFEST.json; without one, of the list of its files."""
    path: str
    """Where it lay in the run, e.g. ``training_state/step_40``."""
    on_box: bool
    """False: no longer in the run when the snapshot was made."""
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class SnapshotLink:
    path: str
    target: str
    """Relative to the link."""


@dataclass(frozen=True)
class StartingWeights:
    """Starting weights that travel with the run."""

    path: str
    """Relative to the root."""
    source: str
    """As the run names them: the same, or an absolute path outside the root."""
    files: tuple[StoredFile, ...]


@dataclass(frozen=True)
class Omitted:
    """Something that a command left out, or could not keep as it is."""

    path: str
    code: str
    reason: str


@dataclass(frozen=True)
class Snapshot:
    """What a complete snapshot holds."""

    kind: str
    name: str
    identity: str
    number: int
    time: str
    """By the clock of the machine that made it; a label."""
    host: str
    version: str
    state: str
    """State of the run when it was made."""
    live: bool
    parent: str = ""
    """Identity of the run that this one was copied from."""
    training_run: str = ""
    """Of an evaluation: the run that it evaluated."""
    steps: tuple[StoredStep, ...] = ()
    files: tuple[StoredFile, ...] = ()
    links: tuple[SnapshotLink, ...] = ()
    log_steps: dict[str, int] = field(default_factory=dict)
    """Last step in each log."""
    hub: tuple[str, ...] = ()
    """Models of the hub that the run needs: ``OWNER/NAME@COMMIT``."""
    data: tuple[str, ...] = ()
    """Paths of data outside the run that it needs; they are not in the snapshot."""
    weights: tuple[StartingWeights, ...] = ()
    evaluations: tuple[str, ...] = ()
    """Folders of its evaluations in the store: ``NAME--IDENTITY``."""
    omitted: tuple[Omitted, ...] = ()
    dropped: tuple[str, ...] = ()
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


def parse_snapshot(data: bytes) -> Snapshot:
    """A manifest. Raises Unreadable with the key that is wrong, for one of a newer format too."""
    row = parse_object(data)
    if row.get("format") != FORMAT:
        raise Unreadable(f"manifest of format {row.get('format')!r:.20}; this version reads {FORMAT}: upgrade grpo-tui")
    found = Snapshot(
        **{name: _text(row, name) for name in ("kind", "name", "identity", "time", "host", "version", "state")},
        **{name: _text(row, name, "") for name in ("parent", "training_run")},
        number=_integer(row, "number", 999_999),
        live=_boolean(row, "live"),
        steps=tuple(_step(item) for item in _objects(row, "steps")),
        files=tuple(_file(item) for item in _objects(row, "files")),
        links=tuple(_link(item) for item in _objects(row, "links")),
        log_steps=_log_steps(row.get("log_steps")),
        hub=_texts(row, "hub"),
        data=_texts(row, "data"),
        weights=tuple(_weights(item) for item in _objects(row, "weights")),
        evaluations=_texts(row, "evaluations"),
        dropped=_texts(row, "dropped"),
        omitted=tuple(
            Omitted(_text(item, "path"), _text(item, "code"), _text(item, "reason"))
            for item in _objects(row, "omitted")
        ),
    )
    if found.kind not in KINDS:
        raise Unreadable(f"'kind' must be one of {', '.join(KINDS)}")
    if len(found.identity) != 16 or not _HEX.issuperset(found.identity):
        raise Unreadable("'identity' must be 16 hex digits")
    check_path(found.name)
    if "/" in found.name:
        raise Unreadable("'name' must not contain a slash")
    in_steps = (f"{step.path}/{file.path}" for step in found.steps for file in step.files)
    _check_tree([*(file.path for file in found.files), *in_steps], [link.path for link in found.links])
    _check_tree([f"{group.path}/{file.path}" for group in found.weights for file in group.files], [])
    return found


def check_path(path: str) -> str:
    """A relative path that stays inside its directory. Raises Unreadable."""
    try:
        return check_key(path)
    except UserError as error:
        raise Unreadable(str(error)) from None


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


def _step(row: dict[str, Any]) -> StoredStep:
    return StoredStep(
        step=_integer(row, "step", 10**18 - 1),
        digest=_digest(row, "digest"),
        path=check_path(_text(row, "path")),
        on_box=_boolean(row, "on_box"),
        files=tuple(_file(item) for item in _objects(row, "files")),
    )


def _weights(row: dict[str, Any]) -> StartingWeights:
    files = tuple(_file(item) for item in _objects(row, "files"))
    return StartingWeights(check_path(_text(row, "path")), _text(row, "source"), files)


def _file(row: dict[str, Any]) -> StoredFile:
    path, mode = check_path(_text(row, "path")), _integer(row, "mode", 0o777)
    parts = tuple(_part(item) for item in ([row] if "key" in row else _objects(row, "segments")))
    if sum(part.size for part in parts) != _integer(row, "size", _MAX_SIZE):
        raise Unreadable(f"{path!r}: 'size' differs from the sum of its segments")
    return StoredFile(path, mode, parts, tuple(_part(item) for item in _objects(row, "replaced", optional=True)))


def _part(row: dict[str, Any]) -> Part:
    return Part(check_path(_text(row, "key")), _integer(row, "size", _MAX_SIZE), _digest(row, "sha256"))


def _link(row: dict[str, Any]) -> SnapshotLink:
    path, target = check_path(_text(row, "path")), _text(row, "target")
    check_path(target)
    return SnapshotLink(path, target)


def _log_steps(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise Unreadable("'log_steps' must be an object")
    return {name: _integer(value, name, 10**18) for name in value}


def _text(row: dict[str, Any], key: str, default: str | None = None) -> str:
    value = row.get(key, default)
    if not isinstance(value, str) or len(value) > 4096:
        raise _wrong(key, "a text", value)
    return value


def _texts(row: dict[str, Any], key: str) -> tuple[str, ...]:
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) and len(item) <= 4096 for item in value):
        raise _wrong(key, "an array of texts", value)
    return tuple(value)


def _objects(row: dict[str, Any], key: str, *, optional: bool = False) -> list[dict[str, Any]]:
    value = row.get(key, [] if optional else None)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _wrong(key, "an array of objects", value)
    return value


def _integer(row: dict[str, Any], key: str, most: int) -> int:
    value = row.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise _wrong(key, f"an integer from 0 to {most}", value)
    return value


def _boolean(row: dict[str, Any], key: str) -> bool:
    value = row.get(key)
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return value


def _digest(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or len(value) != 64 or not _HEX.issuperset(value):
        raise _wrong(key, "64 hex digits", value)
    return value


def _wrong(key: str, wanted: str, value: Any) -> Unreadable:
    given = f"{value!r:.40}" if isinstance(value, (str, int, float)) else type_name(value)
    return Unreadable(f"'{key}' must be {wanted}, not {given}")
