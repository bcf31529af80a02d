"""Dataclasses whose methods are made at their first use."""

from __future__ import annotations

import dataclasses
import sys
import threading
from dataclasses import dataclass

import pytest

from grpo_train.run_dir import lazy_dataclass
from tests.support.patience import PATIENCE, eventually


def is_made(cls: type) -> bool:
    return "__dataclass_params__" in vars(cls)


def test_methods_are_made_at_the_first_use() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 2

    assert not is_made(Point)
    point = Point(1)
    assert is_made(Point)
    assert (point, repr(point).rpartition(".")[2]) == (Point(1, 2), "Point(x=1, y=2)")
    assert len({point, Point(1)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]


def test_fields_of_a_class_that_was_never_used() -> None:
    @dataclass
    class Listed:
        names: list[str] = dataclasses.field(default_factory=list)

    assert [field.name for field in dataclasses.fields(Listed)] == ["names"]
    assert dataclasses.asdict(dataclasses.replace(Listed(), names=["a"])) == {"names": ["a"]}


@pytest.mark.parametrize("decorate", [dataclass, dataclasses.dataclass])
def test_a_subclass_has_the_fields_of_its_base(decorate: type) -> None:
    @dataclass
    class Base:
        x: int

        def __post_init__(self) -> None:
            self.twice = 2 * self.x

    class Plain(Base):
        pass

    assert Plain(1).twice == 2

    @dataclass
    class Other:
        x: int

    @decorate
    class Sub(Other):
        y: int = 0

    assert [field.name for field in dataclasses.fields(Sub)] == ["x", "y"]
    assert Sub(1, 2).y == 2


def test_several_threads_may_use_a_class_first() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int

    made: list[object] = []
    gate = threading.Barrier(8)

    def make() -> None:
        gate.wait()
        made.append(Point(1))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [Point(1)] * 8


def test_a_class_is_whole_while_another_thread_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Point:
        x: int

    original, is_making, may_end = dataclasses.dataclass, threading.Event(), threading.Event()

    def slow(*args: object, **options: object) -> object:
        is_making.set()
        assert may_end.wait(10 * PATIENCE)
        return original(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(dataclasses, "dataclass", slow)
    made: list[Point] = []
    threads = [threading.Thread(target=lambda: made.append(Point(1))) for _ in range(2)]
    threads[0].start()
    assert is_making.wait(10 * PATIENCE)
    threads[1].start()
    eventually(lambda: is_in(threads[1], lazy_dataclass.__file__) or not threads[1].is_alive())
    may_end.set()
    for thread in threads:
        thread.join()
    assert made == [Point(1)] * 2


def is_in(thread: threading.Thread, file: str) -> bool:
    """Whether a thread is in a function of this file."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename == file


def test_exceptions_keep_their_arguments() -> None:
    @dataclass
    class Refused(Exception):
        reason: str

    assert Refused("why").args == ("why",)


def test_fields_may_have_any_name() -> None:
    @dataclass(frozen=True)
    class Named:
        kind: str
        args: int = 0

    assert Named(kind="a", args=1) == Named("a", 1)
