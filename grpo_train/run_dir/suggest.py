"""The nearest known name for a misspelled one. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``; None if none is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "known") -> str:
    """End of an error message: ``did you mean X?``, or all names after the label ``otherwise``."""
    names = list(known)
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"{otherwise}: {', '.join(names)}"
