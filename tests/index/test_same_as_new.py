"""An index that followed its log gives the answers of one made anew: after growth, truncation, replacement, lines cut
anywhere, superseded rows, another agent beside it, and kills at any write."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.index import answers, log_index, store
from tests.support.index import METRICS, Box, logs, make_run, spans_of, supersede

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("series", {"metrics": [*METRICS], "width": 7, "smoothing": 5}),
    ("series", {"metrics": ["reward"], "width": 3, "x": "tokens"}),
    ("metrics", {}),
]


def answered(box: Box, **options: Any) -> list[Any]:
    return [box.whole(op, **params, **options) for op, params in QUESTIONS]


def anew(root: Path) -> list[Any]:
    """The answers of an index made from the file as it is."""
    with tempfile.TemporaryDirectory() as place:
        return answered(Box(root, Path(place)))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "USUAL", 3_000)
    monkeypatch.setattr(log_index, "BLOCK", 6_001)
    monkeypatch.setattr(answers, "BUDGET_S", 0.0)


changes = st.sampled_from(["grow", "grow", "cut", "rewrite", "replace", "supersede", "forget events", "other agent"])


@settings(max_examples=40)
@given(st.data())
def test_any_history_of_a_log(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        directory, boxes = make_run(root), itertools.cycle([Box(root, root / "cache"), Box(root, root / "cache")])
        log, box = directory / "train_log.jsonl", next(boxes)
        log.write_bytes(data.draw(logs(12)))
        for _ in range(data.draw(st.integers(1, 5))):
            if data.draw(st.booleans()):
                answered(box)  # else only as far as one block goes
            box.ask("metrics")
            change, content = data.draw(changes), log.read_bytes()
            if change == "grow":
                with log.open("ab") as file:
                    file.write(data.draw(logs(6)))
            elif change == "cut":
                os.truncate(log, data.draw(st.integers(0, len(content))))
            elif change == "rewrite":
                log.write_bytes(data.draw(st.just(b"") | st.just(content[:4_200])) + data.draw(logs(6)))
            elif change == "replace":
                log.unlink()
                log.write_bytes(data.draw(logs(6)))
            elif change == "supersede":
                supersede(directory, *spans_of(data.draw, content))
            elif change == "forget events":
                (directory / "events.jsonl").unlink(missing_ok=True)
            else:
                box = next(boxes)
        assert answered(box) == anew(root)
        assert answered(next(boxes)) == anew(root)


def lines(first: int, last: int) -> str:
    return "".join(
        f'{{"step": {i}, "time": "2026-11-22T08:00:00Z", "reward": {i % 9}, "num_tokens": {i * 9}'
        f"{', ' + chr(34) + 'rare' + chr(34) + ': 1' if i % 5 == 0 else ''}}}\n"
        for i in range(first, last + 1)
    )


def resumed(directory: Path, size: int) -> None:
    """A resume from the middle of the log."""
    log = directory / "train_log.jsonl"
    start = log.read_bytes().index(b'{"step": 90')
    supersede(directory, (start, size))
    with log.open("a") as file:
        file.write(lines(90, 200))


def test_rows_superseded_later_are_left_out(tmp_path: Path) -> None:
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    (directory / "train_log.jsonl").write_text(lines(1, 150))
    assert answered(box)[0]["rows"] == 150
    resumed(directory, (directory / "train_log.jsonl").stat().st_size)
    assert answered(box)[0]["rows"] == 200
    assert answered(box) == anew(tmp_path)


def test_only_new_bytes_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    log = directory / "train_log.jsonl"
    log.write_text(lines(1, 2_000))
    answered(box)
    taken: list[int] = []
    from remote.index.train_log import TrainLogIndex

    original = TrainLogIndex.take
    monkeypatch.setattr(TrainLogIndex, "take", lambda self, at, line: taken.append(at) or original(self, at, line))
    size = log.stat().st_size
    with log.open("a") as file:
        file.write(lines(2_001, 2_003))
    assert answered(Box(tmp_path, tmp_path / "cache"))[0]["rows"] == 2_003
    assert min(taken) == size
    assert len(taken) == 3


def killed_at(write: int, work: Callable[[], Any]) -> bool:
    """Whether a process that does some work ended by itself; before its write number ``write`` it is killed."""
    pid = os.fork()
    if pid == 0:
        left = itertools.count(write, -1)

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                if next(left) <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return wrapped

        try:
            for name in ("pwrite", "replace", "unlink"):
                setattr(os, name, counted(getattr(os, name)))
            work()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def test_a_kill_at_any_write_leaves_no_wrong_answer(tmp_path: Path) -> None:
    directory = make_run(tmp_path)
    log, place = directory / "train_log.jsonl", tmp_path / "cache"
    for write in itertools.count(0, 3):
        log.write_text(lines(1, 150))
        (directory / "events.jsonl").unlink(missing_ok=True)

        def work() -> None:
            box = Box(tmp_path, place)
            answered(box)
            resumed(directory, log.stat().st_size)
            answered(box)

        ended = killed_at(write, work)
        expected = anew(tmp_path)
        assert answered(Box(tmp_path, place)) == expected, write
        if ended:
            break
    assert write > 20


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "header.json").write_text("{"),
        lambda folder: (folder / "header.json").write_text("[]"),
        lambda folder: (folder / "header.json").write_text('{"version": 1}'),
        lambda folder: os.truncate(folder / "rows-1", 5),
        lambda folder: (folder / "rows-2").unlink(),
        lambda folder: [file.unlink() for file in folder.iterdir()],
        lambda folder: [file.unlink() for file in folder.iterdir()] and folder.rmdir(),
    ],
)
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    (directory / "train_log.jsonl").write_text(lines(1, 50))
    answered(box)
    (folder,) = (tmp_path / "cache").iterdir()
    damage(folder)
    assert answered(box) == anew(tmp_path)


def test_a_held_index_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOCK_WAIT_S", 0.05)
    directory = make_run(tmp_path)
    (directory / "train_log.jsonl").write_text(lines(1, 50))
    answered(Box(tmp_path, tmp_path / "cache"))
    (folder,) = (tmp_path / "cache").iterdir()
    with store.Store(folder).locked():
        assert answered(Box(tmp_path, tmp_path / "cache")) == anew(tmp_path)
    assert len(list((tmp_path / "cache").iterdir())) == 2
