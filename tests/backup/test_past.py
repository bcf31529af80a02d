"""The history of runs that are only in a backup."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from grpo_train.backup.destinations import open_destination
from grpo_train.backup.peek import look, newest_manifest, read_store, runs_in
from grpo_train.backup.runs import back_up_run
from grpo_train.cli import history
from grpo_train.history.database import Database
from grpo_train.history.fields import field_value
from grpo_train.history.news import news_from, plain_news, read_root
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.identity import older_identity, run_identity
from grpo_tui import cli
from grpo_tui.history.writer import StorePages
from tests.support.backups import backup, folder_destination, objects
from tests.support.engine import REPOSITORY, command_here
from tests.support.histories import make_run
from tests.support.s3_servers import server
from tests.support.stores import describe_bucket, write_destinations


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A finished run with an evaluation, a live one, and one of the older layout."""
    root = tmp_path / "box"
    make_run(root, "done", reward=0.7, accuracy=(0.4, 0.62))
    make_run(root, "live", reward=0.4, state="running")
    (root / "rl_runs" / "old" / "step_40").mkdir(parents=True)
    (root / "rl_runs" / "old" / "step_40" / "adapter.bin").write_bytes(b"weights")
    return root


def test_a_run_that_is_only_in_a_backup(root: Path, tmp_path: Path) -> None:
    to = folder_destination(tmp_path / "disk")
    identity = run_identity(root / "training_runs" / "done").identity
    for kind, name in (("training_runs", "done"), ("training_runs", "live"), ("rl_runs", "old")):
        back_up_run(root, kind, name, to)
    shutil.rmtree(root)
    database = Database(tmp_path / "history.sqlite")
    assert read_store(database, to.store, "disk") == ([], True)
    found = {record.name: record for record in database.records()}
    done = found["done"]
    assert (done.identity, done.box, done.state, done.backup) == (identity, "disk", "finished", "complete")
    values = [field_value(done, name) for name in ("reward", "step", "held_out", "max.loss", "lr", "hours")]
    assert values == [0.7, 10, 0.62, 1.0, 1e-5, 1.0]
    assert found["live"].state == "lost", "nobody knows how it went on"
    assert (found["old"].identity, found["old"].number("step")) == (older_identity("old", [40]), 40)
    for path in (tmp_path / "disk").rglob("train_log*"):
        shutil.rmtree(path)
    assert read_store(database, to.store, "disk") == ([], True), "an unchanged backup is not read again"


def test_a_backup_never_takes_the_place_of_a_box(root: Path, tmp_path: Path) -> None:
    to = folder_destination(tmp_path / "disk")
    backup(RunDir(root / "training_runs" / "done"), to)
    for order in ("box first", "backup first"):
        database = Database(tmp_path / f"{order}.sqlite")
        if order == "box first":
            read_root(database, root, "h200-a")
        read_store(database, to.store, "disk")
        read_root(database, root, "h200-a")
        (record,) = [record for record in database.records() if record.name == "done"]
        assert (record.box, record.root, [box for box, _, _ in record.ran]) == ("h200-a", str(root), ["h200-a"]), order


def test_a_record_comes_back_from_plain_json(root: Path, tmp_path: Path) -> None:
    here, there = Database(tmp_path / "a.sqlite"), Database(tmp_path / "b.sqlite")
    read_root(here, root, "x")
    rows = json.loads(json.dumps([plain_news(record) for record in here.records()]))
    there.write([news_from(row, "x", str(root)) for row in rows])
    assert [plain_news(record) for record in there.records()] == rows


def test_a_damaged_log_is_left_out_and_named(root: Path, tmp_path: Path) -> None:
    to = folder_destination(tmp_path / "disk")
    backup(RunDir(root / "training_runs" / "done"), to)
    (key,) = [key for key in objects(to) if "train_log.jsonl" in key]
    size = (tmp_path / "disk" / key).stat().st_size
    (tmp_path / "disk" / key).write_bytes(b"x" * size)
    (home,) = runs_in(to.store)
    snapshot = newest_manifest(to.store, home)
    assert snapshot is not None
    with look(to.store, home, snapshot) as found:
        place = found.run.path
        assert "train_log.jsonl" in found.problems[0]
        assert found.run.config_file.exists()
    assert not place.exists()
    database = Database(tmp_path / "history.sqlite")
    assert "train_log.jsonl" in read_store(database, to.store, "disk")[0][0]
    assert database.records()[0].state == "finished", "what is whole is kept"


def test_rebuild_reads_the_destinations_of_this_machine(
    root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    backup(RunDir(root / "training_runs" / "done"), folder_destination(tmp_path / "disk"))
    settings = home / ".config" / "grpo-tui"
    settings.mkdir(parents=True)
    described = [{"name": "disk", "folder": str(tmp_path / "disk")}, {"name": "gone", "folder": str(tmp_path / "gone")}]
    (settings / "backup.yaml").write_text(yaml.safe_dump({"destinations": described}))
    (settings / "boxes.yaml").write_text("boxes: []\n")
    shutil.rmtree(root)
    assert cli.main(["history", "rebuild", "--boxes", str(settings / "boxes.yaml")]) == 3
    told = capsys.readouterr().err
    assert "backups in disk: 1 runs read" in told
    assert "backups in gone: " in told
    assert cli.main(["history", "--csv", "--columns", "name,box,reward", "reward>0.6"]) == 0
    assert capsys.readouterr().out == "name,box,reward\ndone,disk,0.7\n"
    done = command_here("history", "state:finished", "--from", "disk", "--csv", "--columns", "name", root=tmp_path)
    assert (done.returncode, done.stdout) == (0, "name\ndone\n"), done.stderr


# ------------------------------------------------------------------------------------------------- over the link


def test_the_stores_of_a_box_are_read_over_its_agent(
    root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own ``backup.yaml`` names them; one that cannot be reached costs none of the others."""
    for name in ("DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    running = server("rclone")
    bucket = running.new_bucket()
    describe_bucket(bucket, running)
    write_destinations(
        {"name": "gone", "folder": str(tmp_path / "gone")},
        {"name": "s3", "bucket": bucket, "prefix": "some folder", "ca_file": running.ca_file},
        {"name": "disk", "folder": str(tmp_path / "disk")},
    )
    (tmp_path / "disk").mkdir()
    back_up_run(root, "training_runs", "live", open_destination("s3", root))
    for name in ("done", "live"):
        back_up_run(root, "training_runs", name, open_destination("disk", root))
    shutil.rmtree(root / "training_runs" / "done")
    engine = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "grpo_train.cli"]
    boxes = tmp_path / "boxes.yaml"
    box = {"name": "here", "kind": "local", "root": str(root), "engine": engine, "tmux_socket": "grpo-test-past"}
    boxes.write_text(yaml.safe_dump({"boxes": [box]}))
    assert cli.main(["history", "rebuild", "--boxes", str(boxes), "--box", "here"]) == 3
    told = capsys.readouterr().err
    assert "backups in disk: 2 runs read" in told
    assert "backups in s3: 1 runs read" in told
    assert "warning: here: backups in gone: " in told
    assert cli.main(["history", "--csv", "--columns", "name,box,held_out", "sort:name state:finished,lost"]) == 0
    assert capsys.readouterr().out == "name,box,held_out\ndone,disk,0.62\nlive,here,\n", "a run of the box stays its"


def test_records_are_read_in_pages(
    root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    to = folder_destination(tmp_path / "disk")
    write_destinations({"name": "disk", "folder": str(tmp_path / "disk")})
    for name in ("done", "live"):
        backup(RunDir(root / "training_runs" / name), to)
    monkeypatch.setattr(history, "PAGE_BYTES", 1)
    monkeypatch.setattr(history, "RECORDS_S", -1.0)

    def ask(params: dict[str, Any]) -> dict[str, Any]:
        capsys.readouterr()
        with suppress(typer.Exit):  # 3: there was no time for all runs
            history.history(None, "", True, False, params["source"], True, params.get("after"), tmp_path)
        return dict(json.loads(capsys.readouterr().out))

    pages, asked, names = StorePages("disk"), [], []
    while pages.params is not None:
        asked.append(pages.params)
        names += [one.name for one in pages.take(ask(pages.params))]
    first = {"source": "disk"}
    assert asked == [first, first, {**first, "after": min(pages.identities)}], "one new run, then the other, then pages"
    assert {*names} == {"done", "live"}
    assert pages.problems == []


def test_a_box_speaks_for_its_stores_only() -> None:
    row = {
        "identity": "0" * 16, "root": "s3://bucket", "name": "one", "summary": {}, "config": {}, "metrics": {},
        "evaluations": [], "events": [], "backup": "complete", "parent": "",
    }  # fmt: skip
    rows = [row, {**row, "root": "/of/another/box"}, {**row, "metrics": 3}, {"identity": "x", "unreadable": "too deep"}]
    page = {"records": rows, "next": "", "count": 4, "complete": True, "problems": ["two: damaged"]}
    pages = StorePages("s3")
    assert [(one.name, one.box, one.root) for one in pages.take(page)] == [("one", "s3", "s3://bucket")]
    assert pages.params is None
    assert [problem.partition(":")[0] for problem in pages.problems] == ["one", "x", "two"]
    again = StorePages("s3")
    again.take({**page, "next": "5", "problems": []})
    assert again.params == {"source": "s3", "after": "5"}
    again.take({**page, "next": "5", "problems": []})
    assert again.params is None, "a page that repeats itself ends the pages"
