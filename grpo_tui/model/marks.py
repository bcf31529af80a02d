"""The runs of a box that the user has marked, in the order of marking. No Textual."""

from __future__ import annotations

from collections.abc import Container, Iterator


class Marks:
    """Names of runs. A mark survives updates of the list, and ends with its run."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def toggle(self, name: str) -> bool:
        """Mark a run, or remove its mark; returns whether it is marked now."""
        if name in self._names:
            del self._names[name]
            return False
        self._names[name] = None
        return True

    def clear(self) -> None:
        """Remove all marks."""
        self._names.clear()

    def keep(self, listed: Container[str]) -> None:
        """Remove the marks of runs that are not listed."""
        self._names = {name: None for name in self._names if name in listed}
