"""Records of the protocol: frozen dataclasses whose methods are inherited by all instead of generated for each.

The standard decorator compiles seven methods for each class, about a millisecond; the agent defines 60 records at
every start, and every command of ``grpo-tui`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import MISSING, FrozenInstanceError, dataclass, fields

    def record(*, frozen: bool, kw_only: bool = False):
        """What ``@dataclass(frozen=True)`` makes, with the class's own methods kept."""
        assert frozen, "records are frozen"

        def define(kind: type) -> type:
            for name, method in _METHODS.items():
                if name not in vars(kind):
                    setattr(kind, name, method)
            return dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(kind)

        return define

    def _init(self: Any, *positional: Any, **named: Any) -> None:
        names = self.__match_args__
        known = self.__dataclass_fields__
        given = dict(zip(names, positional, strict=False))
        if len(positional) > len(names) or not given.keys().isdisjoint(named) or not named.keys() <= known.keys():
            wrong = [name for name in named if name in given or name not in known]
            raise TypeError(f"{type(self).__name__} takes {', '.join(known)}; got {wrong or len(positional)}")
        given.update(named)
        values = self.__dict__
        for name, item in known.items():
            if name in given:
                values[name] = given[name]
            elif item.default is not MISSING:
                values[name] = item.default
            elif item.default_factory is not MISSING:
                values[name] = item.default_factory()
            else:
                raise TypeError(f"{type(self).__name__} needs '{name}'")
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()

    def _values(self: Any) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def _eq(self: Any, other: object) -> bool:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def _hash(self: Any) -> int:
        return hash(_values(self))

    def _repr(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self))})"

    def _refuse(self: Any, name: str, *value: Any) -> None:
        raise FrozenInstanceError(f"'{name}' of {type(self).__name__} cannot be changed")

    _METHODS = {
        "__init__": _init,
        "__eq__": _eq,
        "__hash__": _hash,
        "__repr__": _repr,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
    }
