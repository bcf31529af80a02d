"""Bytes of a growing log into whole lines, and a bounded list of them that never renumbers. No Textual."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

MAX_LINE = 1 << 20
"""Bytes of a line that are kept; the rest of a longer one is passed over."""

Item = TypeVar("Item")


class LineSplitter:
    """Cuts a byte stream into lines with their byte offsets; however the bytes were chunked, the lines are the same."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skip_first = False
        self._overflow = False
        self.start: int | None = None
        """Offset of the first byte seen."""
        self.next = 0
        """Offset of the next byte expected."""
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of all bytes seen: a reader can prove that it lost none and doubled none."""
        return self._digest.hexdigest()

    def feed(self, offset: int, data: bytes) -> list[tuple[int, bytes]]:
        """The lines that are whole now, each with the offset of its first byte, newline left out."""
        if self.start is None:
            self.start = self.next = offset
        elif offset != self.next:  # a hole: what is pending belongs to no line any more
            self._rest.clear()
            self._skip_first, self._overflow = True, False
        self._digest.update(data)
        found = []
        line_start = offset - len(self._rest)
        if self._overflow:
            line_start = offset
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            if self._overflow or self._skip_first:
                self._overflow = self._skip_first = False
            else:
                found.append((line_start, bytes(self._rest + data[position:end])))
            self._rest.clear()
            position = end + 1
            line_start = offset + position
        if not self._overflow:
            self._rest += data[position:]
            if len(self._rest) > MAX_LINE:
                self._rest.clear()
                self._overflow = True
        self.next = offset + len(data)
        return found


class LineBuffer(Generic[Item]):
    """The last ``limit`` items of a log. An item keeps its number for ever, so a reader's place is a number."""

    def __init__(self, limit: int) -> None:
        self._items: deque[Item] = deque(maxlen=limit)
        self.first = 0
        """Number of the oldest item kept."""
        self.version = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @property
    def end(self) -> int:
        """One past the number of the newest item."""
        return self.first + len(self._items)

    @property
    def last(self) -> Item | None:
        return self._items[-1] if self._items else None

    def append(self, item: Item) -> None:
        if len(self._items) == self._items.maxlen:
            self.first += 1
        self._items.append(item)
        self.version += 1

    def get(self, number: int) -> Item | None:
        """The item of that number, or None where it is not kept."""
        index = number - self.first
        return self._items[index] if 0 <= index < len(self._items) else None

    def keep(self, wanted: Callable[[Item], bool]) -> None:
        """Leave out the items that are not wanted."""
        kept = [item for item in self._items if wanted(item)]
        if len(kept) != len(self._items):
            self._items.clear()
            self._items.extend(kept)
            self.version += 1
