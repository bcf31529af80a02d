"""The protocol's records behave as the standard frozen dataclasses would."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from remote.protocol.record import record


@record(frozen=True, kw_only=True)
class Base:
    """A base."""

    note: str = ""


@record(frozen=True)
class Point(Base):
    """A point."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("'x' is negative")


@dataclass(frozen=True, kw_only=True)
class StandardBase:
    """A base."""

    note: str = ""


@dataclass(frozen=True)
class StandardPoint(StandardBase):
    """A point."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("values", "named"), [((1,), {}), ((1, 3, ["a"]), {"note": "n"}), ((), {"x": 1, "tags": ["b"]}), ((1,), {"y": 0})]
)
def test_as_a_standard_dataclass(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    point, standard = Point(*values, **named), StandardPoint(*values, **named)
    assert asdict(point) == asdict(standard)
    assert [item.name for item in fields(point)] == [item.name for item in fields(standard)]
    assert repr(point) == repr(standard).replace("StandardPoint", "Point")
    assert replace(point, y=9) == Point(point.x, 9, point.tags, note=point.note)
    assert copy.copy(point) == pickle.loads(pickle.dumps(point)) == point


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, [], "n"), {}), ((1,), {"x": 1}), ((1,), {"z": 1})], ids=str
)
def test_wrong_values_are_refused(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (Point, StandardPoint):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_no_value_is_shared_or_changed() -> None:
    point = Point(1)
    assert point.tags is not Point(1).tags
    with pytest.raises(FrozenInstanceError):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x  # type: ignore[misc]
    with pytest.raises(ValueError, match="negative"):
        Point(-1)


def test_equal_only_to_its_own_kind() -> None:
    assert Base(note="n") == Base(note="n")
    assert Base() != Base(note="n")
    assert Base() != StandardBase()
    assert hash(Base(note="n")) == hash(Base(note="n"))
