"""The identity of a run, the same wherever a copy of its directory is, and its note. Standard library only.

Names repeat: two boxes may both have a run ``demo``. A copy that trains on its own becomes a run of its own; the
backup that finds out writes its new identity to :data:`NOTE`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from grpo_train.run_dir.files import atomic_write, read_json
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, leave_out, read_bytes

LENGTH = 16
"""Hex digits."""
NOTE = ".backup.json"
"""What a directory knows about its backups, see :mod:`grpo_train.backup.record`."""
OLDER_LAYOUT = "rl_runs"


class Identity(NamedTuple):
    """Who a run is."""

    identity: str
    """"" = unknown: it has no ``launch.json``."""
    parent: str = ""
    """Identity of the run that it is a copy of."""


def identity_of(data: bytes) -> str:
    """The identity that the bytes of a ``launch.json`` stand for: the first 16 hex digits of their SHA-256."""
    return hashlib.sha256(data).hexdigest()[:LENGTH]


def older_identity(name: str, steps: Iterable[int]) -> str:
    """The identity of a run of the older layout, which has no ``launch.json``: of its name and its checkpoints."""
    return identity_of(json.dumps([OLDER_LAYOUT, name, sorted(steps)]).encode(errors="surrogatepass"))


def run_identity(folder: Path, launched: bytes | None = None) -> Identity:
    """Identity of a run's directory; ``launched``: its ``launch.json``, if read. Raises Unreadable, OSError."""
    if launched is None:
        launched = read_bytes(folder / "launch.json", MAX_RUN_FILE_BYTES)
    first = "" if launched is None else identity_of(launched)
    note = read_json(folder / NOTE, MAX_RUN_FILE_BYTES, finite=True) or {}
    own, parent = note.get("identity"), note.get("parent")
    return Identity(
        own if isinstance(own, str) and len(own) == LENGTH else first,
        parent if isinstance(parent, str) and len(parent) <= LENGTH else "",
    )


# the note that a person has put on a run: ``RUN/note.txt`` -------------------------------------------------

NOTE_FILE = "note.txt"
MAX_NOTE = 400
"""Characters: the notes of all runs are in every list."""


def read_note(folder: Path) -> str:
    """The note, on one line; "" without one, or where the file is not a note."""
    try:
        found = read_bytes(folder / NOTE_FILE, 4 * MAX_NOTE + 64)
    except (OSError, Unreadable) as error:
        leave_out(folder / NOTE_FILE, error)
        return ""
    return " ".join((found or b"").decode(errors="replace").split())[:MAX_NOTE]


def write_note(folder: Path, text: str) -> str:
    """Replace the note, or remove it with an empty text; returns what is kept. Raises OSError."""
    note = " ".join(text.split())[:MAX_NOTE]
    if note:
        atomic_write(folder / NOTE_FILE, note + "\n")
    else:
        (folder / NOTE_FILE).unlink(missing_ok=True)
    return note
