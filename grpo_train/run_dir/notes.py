"""A note that a person has put on a run: ``RUN/note.txt``. Standard library only."""

from __future__ import annotations

from pathlib import Path

from grpo_train.run_dir.files import atomic_write
from grpo_train.run_dir.safe_json import Unreadable, leave_out, read_bytes

NOTE = "note.txt"
MAX_NOTE = 400
"""Characters: the notes of all runs are in every list."""


def read_note(folder: Path) -> str:
    """The note, on one line; "" without one, or where the file is not a note."""
    try:
        found = read_bytes(folder / NOTE, 4 * MAX_NOTE + 64)
    except (OSError, Unreadable) as error:
        leave_out(folder / NOTE, error)
        return ""
    return " ".join((found or b"").decode(errors="replace").split())[:MAX_NOTE]


def write_note(folder: Path, text: str) -> str:
    """Replace the note, or remove it with an empty text; returns what is kept. Raises OSError."""
    note = " ".join(text.split())[:MAX_NOTE]
    if note:
        atomic_write(folder / NOTE, note + "\n")
    else:
        (folder / NOTE).unlink(missing_ok=True)
    return note
