"""The indexes that this process uses: where each is kept, and those that are in progress."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import Clock
from remote.index import cache
from remote.index.log_index import LogIndex, Source
from remote.index.store import Busy, Store, Unwritable
from remote.protocol import RemoteError

MAX_OPEN = 64
"""Indexes whose state is kept in memory."""
Index = TypeVar("Index", bound=LogIndex)
Key = tuple[str, str, bool]


class Shelf(Generic[Index]):
    """The indexes of one kind of log."""

    def __init__(self, kind: type[Index], places: list[Path], clock: Clock) -> None:
        self._kind, self._places, self._clock = kind, places, clock
        self._indexes: OrderedDict[Key, Index] = OrderedDict()
        self._in_progress: OrderedDict[Key, None] = OrderedDict()
        self._failed: dict[Path, str] = {}
        """Places that did not accept an index, and why."""

    @contextmanager
    def opened(
        self, root: Path, run: Path, follow_links: bool, goes_on: Callable[[], bool]
    ) -> Iterator[tuple[Index, Source | None]]:
        """A run's index, extended while ``goes_on()`` and held, and its log; None if there is no log.

        Raises RemoteError, also where no place accepts the index, and OSError for a log that cannot be read.
        """
        key = (str(root), str(run), follow_links)
        index = self._indexes.get(key) or self._kind(RunDir(run), root, follow_links)
        self._indexes[key] = index
        self._indexes.move_to_end(key)
        while len(self._indexes) > MAX_OPEN:
            self._indexes.popitem(last=False)
        self._in_progress.pop(key, None)
        source = index.open()
        if source is None:
            index.forget()
            yield index, None
            return
        with closing(source), self._extended(index, source, goes_on):
            if not index.whole:
                self._in_progress[key] = None
            yield index, source

    def _extended(self, index: Index, source: Source, goes_on: Callable[[], bool]) -> ExitStack:
        """Hold an index in the first place that accepts it, extended."""
        for place in self._places:
            try:
                if place not in self._failed:
                    return self._extended_in(place, index, source, goes_on)
            except Unwritable as error:
                self._failed[place] = str(error)
        reasons = "; ".join(self._failed.values())
        self._failed.clear()  # the next request tries again
        raise RemoteError(
            "no_index", f"no folder accepts the index: {reasons}", "make room in one of them, or set TMPDIR"
        )

    def _extended_in(self, place: Path, index: Index, source: Source, goes_on: Callable[[], bool]) -> ExitStack:
        """As ``_extended``. Raises Unwritable."""
        cache.check(place)
        name = cache.folder_name(self._kind.file, source.device, source.inode)
        for folder in (place / name, place / f"{name}-{os.getpid()}"):  # its own where another one holds the first
            if not folder.exists():
                cache.prune(place)
            index.store = Store(folder, clock=self._clock)
            with ExitStack() as stack:
                try:
                    stack.enter_context(index.store.locked())
                except Busy:
                    continue
                try:
                    index.advance(source, goes_on)
                except Unwritable:
                    index.store.clear()  # the logs may need the room
                    raise
                return stack.pop_all()
        raise Unwritable(f"{folder} is held by another process")

    @property
    def is_busy(self) -> bool:
        """Whether an index is in progress."""
        return bool(self._in_progress)

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Extend the index that was asked for last while ``goes_on()``.

        Raises RemoteError and OSError; that index is given up.
        """
        root, run, follow_links = next(reversed(self._in_progress))
        with self.opened(Path(root), Path(run), follow_links, goes_on):
            pass
