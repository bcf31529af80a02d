"""``grpo-train history`` over a root."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.files import append_jsonl, utc_now
from grpo_train.run_dir.identity import older_identity, run_identity
from tests.support.engine import command_here
from tests.support.histories import evaluate, make_run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_run(tmp_path, "night-1", reward=0.7, accuracy=(0.4, 0.5, 0.62))
    make_run(tmp_path, "night-2", reward=0.6, state="crashed", error={"summary": "rank 0: out of memory"})
    make_run(tmp_path, "live", reward=0.9, state="running", began=time.time())
    return tmp_path


def found(root: Path, *words: str) -> list[dict[str, object]]:
    done = command_here("history", *words, "--json", root=root)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def test_a_query_over_a_root(root: Path) -> None:
    rows = found(root, "state:finished eval.accuracy>0.6")
    assert [(row["name"], row["held_out"], row["reward"]) for row in rows] == [("night-1", 0.62, 0.7)]
    assert rows[0]["identity"] == run_identity(root / "training_runs" / "night-1").identity
    assert [row["name"] for row in found(root, "sort:-reward")] == ["live", "night-1", "night-2"]
    assert [row["name"] for row in found(root, "error:memory max.loss=1")] == ["night-2"]


def test_a_run_has_its_verdict(root: Path) -> None:
    make_run(root, "fallen", reward=1.8, steps=60, fallen=41)
    (row,) = found(root, "verdict:collapsed")
    assert (row["name"], row["state"], row["verdict"]) == ("fallen", "finished", "collapsed")
    lines = command_here("history", root=root).stdout.splitlines()
    assert [line.split()[0] for line in lines if "▼ collapsed" in line] == ["fallen"]
    assert [line.split()[0] for line in lines if "▼ finished" in line] == ["fallen"], "not ✔"


def test_changes_of_the_root_are_seen(root: Path) -> None:
    assert len(found(root)) == 3
    run = make_run(root, "later", reward=0.2)
    assert len(found(root)) == 4
    append_jsonl(run.logs / "train_log.jsonl", {"step": 11, "time": utc_now(), "reward": 0.95})
    evaluate(RunDir(root / "training_runs" / "night-2"), (0.3, 0.8))
    assert [row["name"] for row in found(root, "eval.accuracy>0.7 or reward>0.93")] == ["night-2", "later"]
    (root / "training_runs" / "night-1").rename(root / "moved")
    assert len(found(root)) == 3


def test_a_damaged_run_is_named(root: Path) -> None:
    (root / "training_runs" / "night-2" / "status.json").write_text("{")
    done = command_here("history", "--csv", "--columns", "name,state", "sort:name", root=root)
    assert (done.returncode, done.stdout) == (3, "name,state\nlive,running\nnight-1,finished\n")
    assert "night-2: status.json" in done.stderr


def test_runs_of_the_older_layout_are_found(root: Path) -> None:
    older = root / "rl_runs" / "old"
    (older / "step_40").mkdir(parents=True)
    evaluate(RunDir(root / "training_runs" / "old"), (0.4, 0.5))
    rows = found(root, 'state:"old layout"')
    assert [(row["name"], row["step"], row["held_out"]) for row in rows] == [("old", 40, 0.5)]
    assert rows[0]["identity"] == older_identity("old", [40])
    evaluate(RunDir(root / "training_runs" / "old"), (0.4, 0.6))
    assert found(root, "name=old")[0]["held_out"] == 0.6
    (older / "step_50").mkdir()
    assert [row["step"] for row in found(root, "name=old")] == [50], "one row, though its identity is another"


def test_a_sweep_is_a_field_of_its_runs(root: Path) -> None:
    create_run(root, {"argv": ["x"], "sweep": "lr_scan"}, "lr_scan_high")
    assert [row["name"] for row in found(root, "sweep:lr_scan")] == ["lr_scan_high"]


def test_everything_about_one_run(root: Path) -> None:
    done = command_here("history", "show", "night-1", root=root)
    assert done.returncode == 0, done.stderr
    assert "gsm8k step 20  .620 [.590, .650]" in done.stdout
    facts = json.loads(command_here("history", "show", "night-1", "--json", root=root).stdout)
    assert facts["metrics"]["loss"] == {"last": 0.1, "min": 0.1, "max": 1.0}
    assert facts["config"]["optimizer.learning_rate"] == 1e-5


def test_mistakes_are_usage_errors(root: Path) -> None:
    done = command_here("history", "rewrd>0.1", root=root)
    assert done.returncode == 2
    assert "did you mean reward?" in done.stderr
    done = command_here("history", "show", "nigth-1", root=root)
    assert done.returncode == 2
    assert "did you mean night-1?" in done.stderr
    assert command_here("history", "--csv", "--json", root=root).returncode == 2
    done = command_here("usage", "nigth-1", "--json", root=root)
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "no_run")


def test_a_damaged_cache_is_made_anew(root: Path) -> None:
    found(root)
    (cache,) = (root / "cache" / "grpo-train").glob("history-*.sqlite")
    cache.write_bytes(b"no database, but as long as one " * 500)
    done = command_here("history", "--csv", "--columns", "name", "sort:name", root=root)
    assert done.stdout == "name\nlive\nnight-1\nnight-2\n"
    assert "is damaged" in done.stderr


def test_backups_are_known_by_the_words_of_the_app(root: Path) -> None:
    latest = {"destination": "disk", "step": 10, "log_step": 10, "events_bytes": 10**6, "time": 1.0}
    for name, facts in (("night-1", {"same_disk": False}), ("night-2", {"same_disk": True})):
        note = {"identity": name.rjust(16, "0"), "stores": {"s": {"latest": {**latest, **facts}}}}
        (root / "training_runs" / name / ".backup.json").write_text(json.dumps(note))
    assert [row["name"] for row in found(root, "backup:complete")] == ["night-1"]
    assert [row["name"] for row in found(root, 'backup:"same disk"')] == ["night-2"]
    assert [row["name"] for row in found(root, "backup:none")] == ["live"]
