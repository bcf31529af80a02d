"""The one gate between what a box sends and the app. Nothing behind it may raise on what a box sent.

Whatever passes has the types of :mod:`remote.protocol.rows`, finite and bounded, and its text is
:func:`~remote.protocol.text.clean`. A row that does not pass is replaced by one that says so, with the reason; the
other rows stay.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from grpo_train.run_dir.formats import current_row
from remote.events import BoxGreeted, ClientEvent, GpuSampled, RunsReported, SessionsReported, TopicFailed
from remote.protocol import OPERATIONS, ProtocolError, RemoteError
from remote.protocol.check import MAX_INTEGER, MAX_ITEMS, NAME_LENGTH, hints_of, mismatch
from remote.protocol.frames import EngineVersion
from remote.protocol.rows import FRAMES, ROWS, UNREADABLE, HostFacts, RowKind
from remote.protocol.text import clean, last_state, visible

MAX_DEPTH = 32
MAX_TEXT = 1 << 20
"""Characters of one string; a longer one is cut."""
MAX_MESSAGE = 2_000
"""Characters of an error message."""
MAX_CONSOLE = 4_000
"""Characters of a console line."""

Rows = list[dict[str, Any]]


class GateError(ValueError):
    """Why a value does not pass the gate."""


# ------------------------------------------------------------------------------------------------------------ text


def message(text: str) -> str:
    """A reason for the user: clean, of bounded length."""
    return clean(text[:MAX_MESSAGE])


def clean_event(event: ClientEvent) -> ClientEvent:
    """An event with its own texts cleaned (reasons, messages, addresses); rows were cleaned when they were admitted."""
    texts = {key: value for key, value in vars(event).items() if type(value) is str}  # not Link, which is a str
    changed: dict[str, Any] = {key: clean(value) for key, value in texts.items() if clean(value) != value}
    return dataclasses.replace(event, **changed) if changed else event


# ---------------------------------------------------------------------------------------------------------- frames


def frame(frame: dict[str, Any]) -> dict[str, Any]:
    """A frame whose ids, offsets and bytes have their types. Raises ProtocolError."""
    kind = FRAMES.get(frame["type"])
    if kind is not None and (problem := mismatch(frame, kind)):
        raise ProtocolError(f"malformed '{frame['type']}' frame: {problem}")
    return frame


def read_greeting(hello: dict[str, Any], algorithms: Mapping[str, str] = MappingProxyType({})) -> BoxGreeted:
    """The event of a hello, without the facts that do not pass. Raises ProtocolError for a malformed one."""
    host, engine = hello.get("host"), hello.get("engine") or {}
    if not isinstance(host, dict) or not isinstance(engine, dict):
        raise ProtocolError("malformed hello")
    version, number = engine.get("version") or "", engine.get("format") or 0
    if problem := mismatch(version, str) or mismatch(number, int):
        raise ProtocolError(f"malformed engine version in hello: {problem}")
    hints = hints_of(HostFacts).items()
    facts = {key: _plain(host[key]) for key, hint in hints if key in host and not mismatch(host[key], hint)}
    agent = hello.get("agent")
    return BoxGreeted(
        clean(agent)[:NAME_LENGTH] if isinstance(agent, str) else "",
        facts,
        EngineVersion(clean(version, "")[:NAME_LENGTH], number),
        {key: clean(name)[:NAME_LENGTH] for key, name in algorithms.items()},
    )


def topic_event(topic: str, update: dict[str, Any], known: KnownRows | None = None) -> ClientEvent:
    """The event of an ``update`` frame. ``known``: the rows of the topic's last update, which are replaced."""
    if update.get("error") is not None:
        error = refusal(update["error"])
        return TopicFailed(topic, f"{error.message}; {error.hint}" if error.hint else error.message)
    key = "gpus" if topic == "gpu" else topic
    value: Any = update.get("value")
    rows = value.get(key) if isinstance(value, dict) else None
    if not isinstance(rows, list):
        return TopicFailed(topic, f"the box sent a malformed update of '{topic}'")
    admitted = _rows(ROWS[key], rows, known)
    if topic == "runs":
        return RunsReported(admitted)
    if topic == "sessions":
        return SessionsReported(admitted)
    note = value.get("note")
    return GpuSampled(admitted, message(note) if isinstance(note, str) else "")


def reply(op: str, response: dict[str, Any]) -> dict[str, Any]:
    """The result of a ``response`` frame. Raises RemoteError: the box's refusal, or ``bad_reply`` for another type."""
    if response.get("ok") is not True:
        raise refusal(response.get("error"))
    kind, result = OPERATIONS[op].reply, response.get("result")
    try:
        if not isinstance(result, dict):
            raise GateError("not an object")
        hints = hints_of(kind)
        if missing := [key for key in kind.__required_keys__ if key not in result]:  # type: ignore[attr-defined]
            raise GateError(f"'{missing[0]}' is missing")
        admitted = {key: _field(key, result[key], hint) for key, hint in hints.items() if key in result}
        unpack = OPERATIONS[op].unpack
        return unpack(admitted) if unpack else admitted
    except ValueError as error:  # includes Unreadable
        raise RemoteError("bad_reply", f"the box sent a malformed {kind.__name__}: {error}") from None


def left_out(response: dict[str, Any]) -> dict[str, str]:
    """The files that a request went on without, with the reasons."""
    files = response.get("left_out")
    rows = files.items() if isinstance(files, dict) else ()
    return {message(file): message(reason) for file, reason in rows if isinstance(reason, str)}


def refusal(error: Any) -> RemoteError:
    """The error of a ``response``, ``closed`` or ``update`` frame, whatever it is."""
    fields = error if isinstance(error, dict) else {"message": error if isinstance(error, str) else "no reason given"}
    code, text, hint = (fields.get(key) for key in ("code", "message", "hint"))
    return RemoteError(
        clean(code, "")[:NAME_LENGTH] if isinstance(code, str) else "error",
        message(text) if isinstance(text, str) else "no reason given",
        message(hint) if isinstance(hint, str) else "",
    )


# ------------------------------------------------------------------------------------------------------------ rows


def _field(key: str, value: Any, hint: Any) -> Any:
    """A field of a reply. Raises Unreadable."""
    if key in ROWS and isinstance(value, list):
        return _rows(ROWS[key], value)
    if hint == dict[str, str] and isinstance(value, dict):  # one bad text does not refuse the others
        texts = {name: text if isinstance(text, str) else UNREADABLE for name, text in value.items()}
        return _plain(dict(list(texts.items())[:MAX_ITEMS]))
    try:
        if problem := mismatch(value, hint):
            raise GateError(problem)
        return _plain(value)
    except GateError as error:
        if hint == dict[str, Any]:
            return {UNREADABLE: str(error)}
        raise GateError(f"{key}: {error}") from None


def _rows(kind: RowKind, values: list[Any], known: KnownRows | None = None) -> Rows:
    rows = (known or KnownRows()).admit(kind, values[:MAX_ITEMS])
    if kind.unique:
        _set_apart(kind, rows)
    if len(values) > MAX_ITEMS:
        rows.append(kind.unreadable("…", f"{len(values) - MAX_ITEMS:,} more are not shown"))
    return rows


class KnownRows:
    """The rows of one list as it was last sent: those that are sent again are not examined again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        """Name to the row as it was sent, and as it was admitted."""

    def admit(self, kind: RowKind, values: list[Any]) -> Rows:
        """The rows of the list as it is sent now."""
        rows, known = [], {}
        for index, value in enumerate(values):
            name = value.get(kind.key) if isinstance(value, dict) else None
            if not (isinstance(name, str) and name):
                rows.append(_row(kind, value, index))
                continue
            sent, row = self._known.get(name, (None, {}))
            if sent is None or sent != value:
                row = _row(kind, value, index)
            known[name] = (value, row)
            rows.append(row)
        self._known = known
        return rows


def _set_apart(kind: RowKind, rows: Rows) -> None:
    """Replace rows whose name another has: a key would act on one of them, and never on the other."""
    taken: set[str] = set()
    for index, row in enumerate(rows):
        name = row[kind.key]
        if name in taken:
            while name in taken:
                name = f"{name[:200]} (row {index + 1})"
            rows[index] = kind.unreadable(name, "another row has this name")
        taken.add(name)


def _row(kind: RowKind, value: Any, index: int) -> dict[str, Any]:
    if problem := mismatch(value, kind.type):
        return kind.unreadable(_shown_name(value, kind.key, index), message(problem))
    hints = hints_of(kind.type)
    if isinstance(error := value.get("error"), dict) and "console_tail" in error:
        tail = [last_state(line) for line in error["console_tail"]]
        value = {**value, "error": {**error, "console_tail": tail}}
    try:
        return {key: _plain(item) for key, item in value.items() if key in hints}
    except GateError as error:  # in a field of a field, of which no type is known
        return kind.unreadable(_shown_name(value, kind.key, index), message(str(error)))


def _shown_name(row: Any, key: str, index: int) -> str:
    """A name for a row that cannot be read: its own as far as it is printable, else its place in the list."""
    name = row.get(key) if isinstance(row, dict) else None
    if isinstance(name, str) and name:
        printable = "".join(c if c.isprintable() else "·" for c in name[:NAME_LENGTH])
        return printable if len(name) <= NAME_LENGTH else printable[:40] + "…"
    return f"row {index + 1}"


def _plain(value: Any, depth: int = MAX_DEPTH, text: Callable[[str], str] = clean) -> Any:
    """Any JSON with clean text, bounded in depth and size, its numbers finite or written as logs write them.

    Raises Unreadable.
    """
    if isinstance(value, str):
        return text(value[:MAX_TEXT])
    if isinstance(value, float):
        return value if value - value == 0 else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        return "Infinity" if value > 0 else "-Infinity"
    if not isinstance(value, (list, dict)):
        return value
    if depth == 0:
        raise GateError(f"nested more than {MAX_DEPTH} deep")
    if len(value) > MAX_ITEMS:
        raise GateError(f"{len(value):,} items, more than {MAX_ITEMS:,}")
    if isinstance(value, list):
        return [_plain(item, depth - 1, text) for item in value]
    return {clean(key, "")[:NAME_LENGTH]: _plain(item, depth - 1, text) for key, item in value.items()}


# ------------------------------------------------------------------------------------------------------------ logs


def log_row(line: bytes) -> dict[str, Any] | None:
    """The row of a JSON line under the current format's keys; None if it cannot be read."""
    try:
        row = json.loads(line)
        return current_row(_plain(row)) if isinstance(row, dict) else None
    except (ValueError, RecursionError):  # includes Unreadable
        return None


def answer_row(line: bytes) -> dict[str, Any] | None:
    """An event of a process that answers questions, its control characters shown; None if it cannot be read."""
    try:
        row = json.loads(line)
        return _plain(row, text=visible) if isinstance(row, dict) else None
    except (ValueError, RecursionError):  # includes Unreadable
        return None


def log_text(line: bytes) -> str:
    """A console line as a terminal shows it: its last state, tabs expanded."""
    return clean(last_state(line.decode("utf-8", "replace")), keep="\t").expandtabs(4)[:MAX_CONSOLE]
