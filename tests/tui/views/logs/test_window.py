"""The window of lines against the real reader: whatever the reader does, it shows the lines of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_tui.box.asking import RETRY_S, Asking
from grpo_tui.views.logs.model import window as log_window
from grpo_tui.views.logs.model.logs import LogSearch
from grpo_tui.views.logs.model.window import LogWindow
from tests.support.index import Box, make_run

PATH = "training_runs/one/logs/console.log"
MOVES = st.one_of(
    st.tuples(st.just("move"), st.integers(-40, 40)),
    st.tuples(st.just("line"), st.integers(1, 90)),
    st.tuples(st.just("append"), st.integers(1, 30)),
    st.tuples(st.just("open"), st.integers(1, 9)),
    st.tuples(st.sampled_from(["end", "start", "stay"]), st.just(0)),
)


class File:
    """A file, the window that shows it, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.box = Box(folder / "root", folder)
        self.path = make_run(folder / "root") / "console.log"
        self.path.write_text("")
        self.now = 100.0

    def append(self, text: str) -> None:
        with self.path.open("a") as log:
            log.write(text)

    def window(self) -> LogWindow:
        return LogWindow("one", PATH, asking=Asking(lambda: self.now))

    def settle(self, window: LogWindow) -> None:
        """Answer requests until none is due."""
        for _ in range(60):
            self.now += 10
            params = window.due(True)
            if params is None:
                return
            before = window.version
            window.answer(params, self.ask("read_log", params))
            if window.version == before and window.target is None:
                return
        raise AssertionError("the window never rests")

    def ask(self, op: str, params: dict[str, Any]) -> dict[str, Any]:
        return self.box.ask(op, **{key: value for key, value in params.items() if key != "run"})


def small(check: Callable[[File], None]) -> None:
    """Run a check with a window of few lines."""
    kept = log_window.LOADED, log_window.MARGIN, log_window.KEPT
    log_window.LOADED, log_window.MARGIN, log_window.KEPT = 12, 5, 40
    try:
        with TemporaryDirectory() as folder:
            check(File(Path(folder)))
    finally:
        log_window.LOADED, log_window.MARGIN, log_window.KEPT = kept


@given(st.lists(MOVES, max_size=10))
@example([("move", -19), ("open", 1), ("append", 1)])
@example([("append", 9)] * 5 + [("move", -5), ("append", 9), ("end", 0)])  # more than are kept
@settings(max_examples=60, deadline=None)
def test_the_window_is_a_part_of_the_file(moves: list[tuple[str, int]]) -> None:
    def check(file: File) -> None:
        file.append("".join(f"line {number}\n" for number in range(1, 61)))
        window = file.window()
        file.settle(window)
        for kind, value in moves:
            expected = None
            if kind == "move":
                total = len(file.path.read_text().splitlines())
                expected = min(total, max(1, (window.number or 1) + value))
                window.move(value)
            elif kind == "line":
                window.go({"line": value})
                expected = value
            elif kind == "append":
                expected = None if window.follows else window.number
                file.append("".join(f"new {number}\n" for number in range(value)))
            elif kind == "open":
                file.append("x" * value)
            else:
                {"end": window.to_end, "start": window.to_start, "stay": window.stay}[kind]()
            file.settle(window)
            lines = file.path.read_text().splitlines()
            first = window.first_number
            assert [line.text for line in window.lines] == lines[first - 1 : first - 1 + len(window.lines)]
            assert window.total == len(lines)
            if expected is not None:
                assert window.number == min(expected, len(lines))
            if window.follows:
                assert window.number == len(lines)

    small(check)


def test_a_replaced_file_is_read_from_its_end() -> None:
    def check(file: File) -> None:
        file.append("a\nb\nc\n")
        window = file.window()
        file.settle(window)
        file.path.write_text("z\n")
        file.settle(window)
        assert [line.text for line in window.lines] == ["z"]
        assert window.notice

    small(check)


def test_an_answer_for_another_place_is_ignored() -> None:
    def check(file: File) -> None:
        file.append("".join(f"{number}\n" for number in range(1, 100)))
        window = file.window()
        file.settle(window)
        window.go({"line": 50})
        params = window.due(True) or {}
        window.go({"line": 20})
        window.answer(params, file.ask("read_log", params))
        file.settle(window)
        assert window.number == 20

    small(check)


def test_a_failure_is_told_and_tried_again() -> None:
    clock = [1.0]
    window = LogWindow("one", PATH, asking=Asking(lambda: clock[0]))
    window.fail(window.due(True) or {}, "no disk")
    assert window.asking.problem == "no disk"
    assert window.due(True) is None
    clock[0] += RETRY_S
    assert window.due(True) is not None


def test_a_search_counts_from_the_beginning() -> None:
    def check(file: File) -> None:
        file.append("".join(f"{number} {'hit' if number % 10 == 0 else ''}\n" for number in range(1, 3_001)))
        search = LogSearch("one", PATH, "hit", cursor=0, asking=Asking(lambda: file.now))
        seen = []
        for _ in range(40):
            if (params := search.due(False)) is not None:
                search.answer(file.ask("search_log", params))
            if (found := search.jump()) is not None:
                search.cursor = found
                seen.append(search.index)
            search.wants += 7
            file.now += 0.1
        assert seen[:3] == [1, 8, 15]
        assert seen == sorted(seen, key=lambda index: index or 0)
        assert seen[-1] == 274

    small(check)
