"""Several transfers at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def for_each(work: Callable[[Item], None], items: Iterable[Item], threads: int) -> None:
    """Call ``work`` with each item; after the first exception no further item is begun, and it is raised."""
    if threads <= 1:
        for item in items:
            work(item)
        return
    stop = threading.Event()

    def one(item: Item) -> None:
        if stop.is_set():
            return
        try:
            work(item)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(one, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:  # Ctrl-C too
            stop.set()
            raise
