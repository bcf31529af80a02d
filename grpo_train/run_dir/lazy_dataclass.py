"""``dataclass``, whose methods are made when the class is first used: a program imports many more than it uses.

The standard decorator compiles six methods, which takes 0.3 to 1 ms a class.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

_lock = threading.RLock()

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """As ``dataclasses.dataclass``, and the same where ``__new__`` or ``__init__`` are not its own to make."""
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        is_plain = cls.__new__ is object.__new__ or getattr(cls.__new__, "__module__", "") == __name__
        if options.get("slots") or options.get("init") is False or "__init__" in vars(cls) or not is_plain:
            return dataclasses.dataclass(cls, **options)
        _postpone(cls, options)
        return cls


class _Fields:
    """Stands for the fields of a class until they are asked for."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __get__(self, instance: object, owner: type) -> Any:
        return self._make().__dataclass_fields__


def _postpone(cls: Any, options: dict[str, Any]) -> None:
    is_made = False

    def make() -> Any:
        nonlocal is_made
        with _lock:
            if not is_made:
                dataclasses.dataclass(cls, **options)
                is_made = True
        return cls

    # It stays, as a thread may look __init__ up only when this has returned.
    def new(kind: Any, /, *args: Any, **values: Any) -> Any:
        if not is_made:
            make()
        return super(cls, kind).__new__(kind)

    cls.__dataclass_fields__, cls.__new__ = _Fields(make), new
