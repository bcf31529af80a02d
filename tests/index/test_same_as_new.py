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
from remote.index.train_log import TrainLogIndex
from tests.support.index import METRICS, Box, completion, logs, make_run, rollouts, spans_of, supersede

Question = tuple[str, dict[str, Any]]
KILL_EVERY = int(os.environ.get("INDEX_KILL_EVERY", "7"))
"""Writes between two kills; 1 kills at each."""
QUESTIONS: dict[str, list[Question]] = {
    "train_log.jsonl": [
        ("series", {"metrics": [*METRICS], "width": 7}),
        ("series", {"metrics": ["reward"], "width": 3, "x": "tokens"}),
        ("metrics", {}),
    ],
    "rollouts.jsonl": [("rollout_steps", {}), ("search_rollouts", {"where": ["and"], "limit": 1_000})],
}
FILES = sorted(QUESTIONS)
CONTENT = {"train_log.jsonl": logs, "rollouts.jsonl": rollouts}


def answered(box: Box, file: str) -> list[Any]:
    """The answers of an index that is whole."""
    first, *others = QUESTIONS[file]
    return [box.whole(first[0], **first[1]), *(box.ask(op, **params) for op, params in others)]


def anew(root: Path, file: str) -> list[Any]:
    """The answers of an index made from the file as it is."""
    with tempfile.TemporaryDirectory() as place:
        return answered(Box(root, Path(place)), file)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "USUAL", 3_000)
    monkeypatch.setattr(log_index, "BLOCK", 6_001)
    monkeypatch.setattr(answers, "BUDGET_S", 0.0)


changes = st.sampled_from(["grow", "grow", "cut", "rewrite", "replace", "supersede", "forget events", "other agent"])


@pytest.mark.parametrize("file", FILES)
@settings(max_examples=40)
@given(st.data())
def test_any_history_of_a_log(file: str, data: st.DataObject) -> None:
    content = CONTENT[file]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        directory, boxes = make_run(root), itertools.cycle([Box(root, root / "cache"), Box(root, root / "cache")])
        log, box = directory / file, next(boxes)
        log.write_bytes(data.draw(content(12)))
        for _ in range(data.draw(st.integers(1, 5))):
            if data.draw(st.booleans()):
                answered(box, file)
            box.ask(*QUESTIONS[file][-1][:1], **QUESTIONS[file][-1][1])  # else only as far as one block goes
            change, before = data.draw(changes), log.read_bytes()
            if change == "grow":
                with log.open("ab") as stream:
                    stream.write(data.draw(content(6)))
            elif change == "cut":
                os.truncate(log, data.draw(st.integers(0, len(before))))
            elif change == "rewrite":
                log.write_bytes(data.draw(st.just(b"") | st.just(before[:4_200])) + data.draw(content(6)))
            elif change == "replace":
                log.unlink()
                log.write_bytes(data.draw(content(6)))
            elif change == "supersede":
                supersede(directory, *spans_of(data.draw, before), file=file)
            elif change == "forget events":
                (directory / "events.jsonl").unlink(missing_ok=True)
            else:
                box = next(boxes)
        assert answered(box, file) == anew(root, file)
        assert answered(next(boxes), file) == anew(root, file)


def lines(first: int, last: int) -> str:
    return "".join(
        f'{{"step": {i}, "time": "2026-11-22T08:00:00Z", "reward": {i % 9}, "num_tokens": {i * 9}'
        f"{', ' + chr(34) + 'rare' + chr(34) + ': 1' if i % 5 == 0 else ''}}}\n"
        for i in range(first, last + 1)
    )


def samples(first: int, last: int) -> str:
    return "".join(completion(i, i % 3, i % 5, float(i % 2)) for i in range(first, last + 1) for _ in range(i % 4))


TEXT = {"train_log.jsonl": lines, "rollouts.jsonl": samples}


@pytest.mark.parametrize("file", FILES)
def test_a_line_that_is_too_long_is_passed(file: str, tmp_path: Path) -> None:
    """It is counted once, wherever it is cut; what follows it is indexed."""
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    log, question = directory / file, QUESTIONS[file][-1]
    log.write_text(TEXT[file](1, 9))
    whole = answered(box, file)
    for piece in ('{"step": 10, "note": "', "x" * 7_000, "x" * 20_000, '"}\n'):
        with log.open("a") as stream:
            stream.write(piece)
        box.ask(question[0], **question[1])
    (passed, *_), (before, *_) = answered(box, file), whole
    assert passed["skipped"] == before["skipped"] + 1
    with log.open("a") as stream:
        stream.write(TEXT[file](11, 20))
    assert answered(box, file) == anew(tmp_path, file) != whole


def resumed(log: Path) -> None:
    """A resume from the middle of the log."""
    supersede(log.parent, (log.read_bytes().index(b'{"step": 90'), log.stat().st_size), file=log.name)
    with log.open("a") as file:
        file.write(TEXT[log.name](90, 200))


@pytest.mark.parametrize("file", FILES)
def test_rows_superseded_later_are_left_out(tmp_path: Path, file: str) -> None:
    log, box = make_run(tmp_path) / file, Box(tmp_path, tmp_path / "cache")
    log.write_text(TEXT[file](1, 150))
    assert answered(box, file)[0]["rows"] == TEXT[file](1, 150).count("\n")
    resumed(log)
    assert answered(box, file)[0]["rows"] == TEXT[file](1, 200).count("\n")
    assert answered(box, file) == anew(tmp_path, file)


def test_only_new_bytes_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_run(tmp_path) / "train_log.jsonl"
    log.write_text(lines(1, 500))
    answered(Box(tmp_path, tmp_path / "cache"), log.name)
    taken: list[int] = []
    take = TrainLogIndex.take
    monkeypatch.setattr(TrainLogIndex, "take", lambda self, at, line: taken.append(at) or take(self, at, line))
    size = log.stat().st_size
    with log.open("a") as file:
        file.write(lines(501, 503))
    assert answered(Box(tmp_path, tmp_path / "cache"), log.name)[0]["rows"] == 503
    assert taken[0] == size
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


@pytest.mark.parametrize("file", FILES)
def test_a_kill_at_any_write_leaves_no_wrong_answer(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "USUAL", 3_000 if file == "train_log.jsonl" else 40_000)
    log, place = make_run(tmp_path) / file, tmp_path / "cache"
    for write in itertools.count(0, KILL_EVERY):
        log.write_text(TEXT[file](1, 150))
        (log.parent / "events.jsonl").unlink(missing_ok=True)

        def work() -> None:
            box = Box(tmp_path, place)
            answered(box, file)
            resumed(log)
            answered(box, file)

        ended = killed_at(write, work)
        assert answered(Box(tmp_path, place), file) == anew(tmp_path, file), write
        if ended:
            break
    assert write > 20


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "header.json").write_text("{"),
        lambda folder: (folder / "header.json").write_text("[]"),
        lambda folder: (folder / "header.json").write_text('{"version": 1}'),
        lambda folder: [os.truncate(file, 5) for file in folder.glob("*-1")],
        lambda folder: [file.unlink() for file in folder.glob("*-2")],
        lambda folder: [file.unlink() for file in folder.iterdir()],
        lambda folder: [file.unlink() for file in folder.iterdir()] and folder.rmdir(),
    ],
)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: Callable[[Path], Any], file: str) -> None:
    log, box = make_run(tmp_path) / file, Box(tmp_path, tmp_path / "cache")
    log.write_text(TEXT[file](1, 50))
    answered(box, file)
    (folder,) = (tmp_path / "cache").iterdir()
    damage(folder)
    assert answered(box, file) == anew(tmp_path, file)


def test_a_held_index_is_not_waited_for(tmp_path: Path) -> None:
    (make_run(tmp_path) / FILES[0]).write_text(samples(1, 50))
    answered(Box(tmp_path, tmp_path / "cache"), FILES[0])
    (folder,) = (tmp_path / "cache").iterdir()
    with store.IndexStore(folder).locked():
        box = Box(tmp_path, tmp_path / "cache")
        assert answered(box, FILES[0]) == anew(tmp_path, FILES[0])
    assert len(list((tmp_path / "cache").iterdir())) == 2
