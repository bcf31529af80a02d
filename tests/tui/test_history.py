"""``grpo-tui history`` and ``cost``, and the app that writes what it hears."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from grpo_train.history.database import Database
from grpo_train.run_dir.identity import identity_of
from grpo_tui import cli
from grpo_tui.history.spending import spending
from grpo_tui.history.writer import HistoryWriter
from remote.base import BoxesError
from remote.boxes import Box, parse_boxes
from tests.support.histories import BEGAN, HOUR, make_run
from tests.support.patience import PATIENCE
from tests.tui.conftest import Start
from tests.tui.fake import FakeClient, learning_box


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs of an hour each, an hour apart; the first was evaluated in between."""
    root = tmp_path / "root"
    make_run(root, "one", reward=0.7, accuracy=(0.4, 0.5, 0.62))
    make_run(root, "two", reward=0.3, began=BEGAN + 3 * HOUR, state="crashed")
    return root


@pytest.fixture
def boxes(tmp_path: Path, root: Path) -> Path:
    file = tmp_path / "boxes.yaml"
    file.write_text(
        f"boxes:\n  - {{name: here, kind: local, root: {root}, price_per_hour: 2.5, tmux_socket: grpo-test-history}}\n"
    )
    return file


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert cli.main([*words]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_box_is_read_over_its_agent(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no runs are known yet" in told(capsys, "history")
    told(capsys, "history", "rebuild", "--boxes", str(boxes), "--box", "here")
    rows = json.loads(told(capsys, "history", "sort:reward", "--json", "--columns", "name,box,cost,held_out,max.loss"))
    assert [(row["name"], row["box"], row["cost"]) for row in rows] == [("two", "here", 2.5), ("one", "here", 2.5)]
    assert (rows[1]["held_out"], rows[1]["max.loss"]) == (0.62, 1)
    assert "gsm8k step 20  .620" in told(capsys, "history", "show", "one")
    assert "lr" in told(capsys, "history", "lr>=1e-5")


def test_a_root_of_this_machine_is_read(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "history", "rebuild", "--root", str(root))
    assert told(capsys, "history", "state:crashed", "--csv", "--columns", "name,box") == "name,box\ntwo,local\n"
    assert cli.main(["history", "rebuild", "--root", str(root / "nowhere")]) == 2


def test_runs_of_a_gone_box_stay(boxes: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "history", "rebuild", "--boxes", str(boxes), "--box", "here")
    (root / "training_runs" / "one").rename(root / "gone")
    told(capsys, "history", "rebuild", "--boxes", str(boxes), "--box", "here")
    assert told(capsys, "history", "sort:name", "--csv", "--columns", "name") == "name\none\ntwo\n"


def test_an_unreachable_box_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "boxes.yaml"
    file.write_text("boxes:\n  - {name: away, host: 127.0.0.1, port: 1, user: me, transport: paramiko}\n")
    assert cli.main(["history", "rebuild", "--boxes", str(file), "--box", "away"]) == 3
    assert "away: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["history", "rewrd>1"], ["history", "show", "onn"], ["cost", "--since", "soon"]])
def test_mistakes_are_usage_errors(words: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "history", "rebuild", "--root", str(root))
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith("grpo-tui: ")


def test_costs_are_split_by_what_the_box_did(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "history", "rebuild", "--boxes", str(boxes), "--box", "here")
    database = Database(cli.history_file())
    database.box_up("here", (BEGAN, BEGAN + 5 * HOUR))
    (box,) = spending(database, BEGAN, BEGAN + 5 * HOUR).by_box()
    assert (box.hours, box.runs, box.evaluations, box.idle, box.total) == (
        5.0, pytest.approx(5.0), pytest.approx(1.25), pytest.approx(6.25), pytest.approx(12.5),
    )  # fmt: skip
    one, two = spending(database, BEGAN + HOUR / 2, BEGAN + 3.25 * HOUR).by_run()
    assert [(one.run, one.cost), (two.run, two.cost)] == [("one", pytest.approx(1.25)), ("two", pytest.approx(0.625))]
    assert one.cost_per_point == pytest.approx(2 * 2.5 / 22)  # 20 evaluated steps at the cost of 10, for 22 points
    days = spending(database, BEGAN, BEGAN + 30 * HOUR).by_day()
    assert sum(day.total or 0 for day in days) == pytest.approx(12.5)


def test_costs_are_printed(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing ran" in told(capsys, "cost")
    told(capsys, "history", "rebuild", "--boxes", str(boxes), "--box", "here")
    text = told(capsys, "cost")
    assert "evaluations started by hand $1.25" in text
    assert "2026-09-21" in told(capsys, "cost", "--by", "day")
    found = json.loads(told(capsys, "cost", "--by", "box", "--json"))
    assert found["rows"][0]["box"] == "here"


def test_costs_without_a_price_are_not_known(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boxes.write_text(boxes.read_text().replace(" price_per_hour: 2.5,", ""))
    told(capsys, "history", "rebuild", "--boxes", str(boxes), "--box", "here")
    text = told(capsys, "cost")
    assert "total not known" in text
    assert "without a price in boxes.yaml, so not in these sums: here" in text
    assert json.loads(told(capsys, "cost", "--json"))["total"] is None


def test_a_damaged_file_is_moved_aside_and_rebuilt(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "history", "rebuild", "--boxes", str(boxes), "--box", "here")
    cli.history_file().write_bytes(b"not a database, but as long as one" * 1_000)
    config = cli.history_file().parents[2] / "config" / "grpo-tui"
    config.mkdir(parents=True)
    (config / "boxes.yaml").write_text(boxes.read_text().replace("here", "local"))
    assert told(capsys, "history", "sort:name", "--csv", "--columns", "name") == "name\none\ntwo\n"
    assert len(list(cli.history_file().parent.glob("*.damaged-*"))) == 1


async def test_the_app_writes_what_it_hears(start: Start, tmp_path: Path) -> None:
    def with_identities(client: FakeClient) -> None:
        learning_box(client)
        for row in client.runs:
            row["identity"] = identity_of(row["run"].encode())

    file = tmp_path / "h.sqlite"
    async with start(with_identities, history=file) as session:
        database = Database(file)
        names = {row["run"] for row in session.client.runs if row["state"] != "unreadable"}
        await session.until(lambda: file.exists() and {one.name for one in database.records()} >= names, "the records")
        assert all(one.box == "h200-a" and one.prices["h200-a"].at(0) == 2.49 for one in database.records())


def _put_many(file: Path, start: int) -> None:
    writer = HistoryWriter(file, Box("b", host="x", price_per_hour=1.0))
    for index in range(start, start + 20):
        row = {"run": f"r{index}", "identity": f"{index:016x}", "state": "running", "step": 1}
        writer.put("runs", {}, {"runs": [row]})
        writer.flush()  # only the newest list waits


def test_two_apps_and_a_command_write_at_once(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "h.sqlite"
    context = multiprocessing.get_context("spawn")
    apps = [context.Process(target=_put_many, args=(file, 100 * number)) for number in range(2)]
    for app in apps:
        app.start()
    for _ in range(5):
        told(capsys, "history", "rebuild", "--root", str(root), "--file", str(file))
    for app in apps:
        app.join(120 * PATIENCE)
        assert app.exitcode == 0
    assert len(Database(file).records()) == 42


def test_a_damaged_file_costs_the_app_the_history_only(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    file.write_bytes(b"not a database, but as long as one" * 1_000)
    writer = HistoryWriter(file, Box("b", host="x"))
    for step in (1, 2, 3):
        writer.put("runs", {}, {"runs": [{"run": "r", "identity": "f" * 16, "state": "running", "step": step}]})
        writer.put("show_run", {}, {"odd": 1})
        writer.flush()
    assert [one.number("step") for one in Database(file).records()] == [3]


def test_dated_prices(tmp_path: Path) -> None:
    (box,) = parse_boxes("boxes:\n  - {name: a, host: b, prices: {2026-01-01: 3, '2026-06-01': 2.5}}")
    start, later = sorted(box.dated_prices())
    assert [box.price_at(at) for at in (start - 1, start, later - 1, later)] == [3.0, 3.0, 3.0, 2.5]
    for bad in ("{soon: 1}", "{2026-01-01: -1}", "3", "{2026-01-01: true}"):
        with pytest.raises(BoxesError, match="'prices' must be days"):
            parse_boxes(f"boxes:\n  - {{name: a, host: b, prices: {bad}}}")
    with pytest.raises(BoxesError, match="not both"):
        parse_boxes("boxes:\n  - {name: a, host: b, price_per_hour: 1, prices: {2026-01-01: 3}}")


def test_help_loads_no_database() -> None:
    from tests.tui.test_imports import loaded_after

    code = "from grpo_tui.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert "sqlite3" not in loaded_after(code)
    assert "sqlite3" not in loaded_after("import grpo_tui.history.writer")
