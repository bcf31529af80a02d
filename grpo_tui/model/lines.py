"""Whole lines from the bytes of a growing log, and a bounded list of them with stable indexes. No Textual."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

MAX_LINE = 1 << 20
"""Maximum bytes of a line. A longer line is dropped."""

Item = TypeVar("Item")


class LineSplitter:
    """Splits a byte stream into lines with their byte offsets, independent of how the bytes were chunked."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skip_first = False
        self._overflow = False
        self._next: int | None = None
        """Offset of the next expected byte; None before the first one."""

    def feed(self, offset: int, data: bytes) -> list[tuple[int, bytes]]:
        """Lines that are complete now, each with the offset of its first byte and without its newline."""
        if self._next is not None and offset != self._next:  # bytes are missing: the pending line is incomplete
            self._rest.clear()
            self._skip_first, self._overflow = True, False
        found = []
        line_start = offset if self._overflow else offset - len(self._rest)
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
        self._next = offset + len(data)
        return found


class LineBuffer(Generic[Item]):
    """The last items of a log: at most ``limit``, and of at most ``weight`` bytes in all unless one alone has more.

    The index of an item never changes, so it can serve as a scroll position.
    """

    def __init__(self, limit: int, weight: int = 1 << 24) -> None:
        self._limit, self._most = limit, weight
        self._items: deque[Item] = deque()
        self._weights: deque[int] = deque()
        self._weight = 0
        self.first = 0
        """Index of the oldest item kept."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @property
    def end(self) -> int:
        """One past the index of the newest item."""
        return self.first + len(self._items)

    @property
    def last(self) -> Item | None:
        return self._items[-1] if self._items else None

    def append(self, item: Item, weight: int = 0) -> None:
        """Add an item of about ``weight`` bytes."""
        self._items.append(item)
        self._weights.append(weight)
        self._weight += weight
        while len(self._items) > self._limit or (self._weight > self._most and len(self._items) > 1):
            self._items.popleft()
            self._weight -= self._weights.popleft()
            self.first += 1

    def get(self, index: int) -> Item | None:
        """The item with this index, or None if it is not kept."""
        position = index - self.first
        return self._items[position] if 0 <= position < len(self._items) else None

    def remove(self, unwanted: Callable[[Item], bool]) -> None:
        """Remove the items for which ``unwanted`` holds."""
        kept = [pair for pair in zip(self._items, self._weights, strict=True) if not unwanted(pair[0])]
        self._items = deque(item for item, _ in kept)
        self._weights = deque(weight for _, weight in kept)
        self._weight = sum(self._weights)
