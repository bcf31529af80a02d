"""The file of records: many writers, damage, and runs that move between boxes."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from grpo_train.history.database import Database, HistoryError, News
from grpo_train.history.record import kept_summary
from grpo_train.run_dir.files import utc_from
from tests.support.histories import COLLAPSED
from tests.support.patience import PATIENCE

T = 1_790_000_000.0


def news(identity: str = "aa", box: str = "a", at: float = 100.0, **known: object) -> News:
    summary = {"state": "finished", "updated_at": utc_from(T + at), "run_seconds": at}
    return News(identity, box, "/r", "demo", summary=summary, **known)  # type: ignore[arg-type]


def test_records_come_back(tmp_path: Path) -> None:
    database = Database(tmp_path / "new" / "h.sqlite")
    database.write([news(config={"run.seed": 1}, metrics={"loss": [1, 0, 2]}, spans=[(T, T + 100)]), news("bb", "b")])
    database.write([News("aa", "a", "/r", "demo", evaluations=[{"dataset": "x", "rows": []}])])
    first, second = sorted(database.records(), key=lambda record: record.identity)
    assert (first.config, first.metrics) == ({"run.seed": 1}, {"loss": [1, 0, 2]})
    assert first.evaluations == [{"dataset": "x", "rows": []}]
    assert first.spans == [("a", T, T + 100)]
    assert (second.name, second.box, second.config) == ("demo", "b", {})
    assert database.path.stat().st_mode & 0o077 == 0


def test_an_older_copy_changes_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.sqlite")
    database.write([news(box="b", at=300)])
    database.write([news(box="a", at=100)])
    (record,) = database.records()
    assert (record.box, record.summary["run_seconds"]) == ("b", 300)


def test_a_list_without_verdicts_keeps_what_is_known_of_the_same_step(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.sqlite")
    row = {"state": "finished", "step": 60}
    verdict = COLLAPSED.to_json()
    for summary, known in (({**row, "verdict": verdict}, COLLAPSED), (row, COLLAPSED), ({**row, "step": 70}, None)):
        database.write([News("aa", "a", "/r", "demo", summary=kept_summary(summary))])
        (record,) = database.records()
        assert record.verdict == known


@pytest.mark.parametrize("verdict", [{"word": "collapsed"}, {**COLLAPSED.to_json(), "since": "soon"}])
def test_a_verdict_that_is_none_is_refused(verdict: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        kept_summary({"state": "finished", "verdict": verdict})
    assert "verdict" not in kept_summary({"verdict": {"word": "of a later version"}})


def test_a_moved_run_keeps_its_hours_on_both_boxes(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.sqlite")
    database.write([news(box="a", at=100, spans=[(T, T + 100)])])
    database.write([news(box="b", at=500, spans=[(T, T + 100), (T + 400, T + 500)])])
    (record,) = database.records()
    assert record.spans == [("a", T, T + 100), ("b", T + 400, T + 500)]
    database.write([news(box="b", at=600, spans=[(T, T + 100), (T + 400, T + 600)])])
    assert database.records()[0].spans == [("a", T, T + 100), ("b", T + 400, T + 600)]


def test_a_changed_price_holds_from_now_on(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.sqlite")
    database.box_heard("a", "/r", {0.0: 2.0}, T)
    database.box_heard("a", "/r", {0.0: 2.0}, T + 5)
    database.box_heard("a", "/r", {0.0: 3.0}, T + 10)
    assert database.prices()["a"].steps == ((0.0, 2.0), (T + 10, 3.0))
    database.box_heard("a", "/r", {}, T + 20)  # a box without a price keeps the old ones
    database.box_heard("a", "/r", {T: 1.0, T + 7: 4.0}, T + 20)
    assert database.prices()["a"].steps == ((T, 1.0), (T + 7, 4.0))


def test_times_that_a_box_was_up_join(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.sqlite")
    for start, end in ((0, 100), (0, 250), (9_000, 9_100), (260, 400)):
        database.box_up("a", (T + start, T + end))
    assert database.ups() == {"a": [(T, T + 400), (T + 9_000, T + 9_100)]}


def test_runs_that_are_gone_are_forgotten_only_when_asked(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.sqlite")
    database.write([news("aa"), news("bb"), News("cc", "other", "/r", "x")])
    database.forget_missing("a", "/r", ["bb"])
    assert sorted(record.identity for record in database.records()) == ["bb", "cc"]


@pytest.mark.parametrize("damage", ["text", "middle"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, damage: str) -> None:
    database = Database(tmp_path / "h.sqlite")
    database.write([news(f"{index:04x}", metrics={"loss": [0.5] * 300}) for index in range(200)])
    with sqlite3.connect(database.path) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = database.path.stat().st_size
    with database.path.open("r+b") as raw:
        raw.seek(0 if damage == "text" else 4096)
        raw.write(b"\xff" * (size - 4096))
    with pytest.raises(HistoryError, match="is damaged") as refused:
        database.records()
    assert refused.value.code == "damaged"
    assert database.moved_to is not None
    assert database.moved_to.stat().st_size == size
    database.write([news()])
    assert [record.identity for record in Database(database.path).records()] == ["aa"]


def test_a_file_of_another_version_is_made_anew(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.sqlite")
    database.write([news()])
    with sqlite3.connect(database.path) as file:
        file.execute("PRAGMA user_version = 99")
    assert database.records() == []


def test_a_folder_that_takes_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="file"):
        Database(tmp_path / "file" / "h.sqlite").records()


def _write_many(path: Path, start: int) -> None:
    database = Database(path)
    for index in range(start, start + 30):
        database.write([news(f"{index:04x}", metrics={"loss": [index, 0, 0]})])
        database.records()


def test_programs_write_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path / "h.sqlite", 100 * number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120 * PATIENCE)
        assert writer.exitcode == 0
    assert len(Database(tmp_path / "h.sqlite").records()) == 90
