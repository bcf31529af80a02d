"""Stored results: damage is detected, results of other settings are kept, torn restepments are repaired."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.evaluation.regrade import Regraded, regrade_evaluations
from grpo_train.evaluation.report.compare import compare_steps
from grpo_train.evaluation.request import EvalError
from grpo_train.evaluation.results.stored import SUPERSEDED, read_completion_rows, restore_torn
from grpo_train.evaluation.targets import Unfinished
from grpo_train.run_dir import TABLE, RunDir, list_evaluations, read_table
from grpo_train.run_dir.files import read_json
from tests.support.evaluating import (
    SAMPLED,
    InProcessPool,
    evaluate_here,
    evaluate_until,
    files_of,
    partial_of,
    record_generated,
    step_of,
)


def torn_completions(step: Path) -> None:
    file = step / "completions.jsonl"
    file.write_bytes(file.read_bytes()[:-500])


def lost_lines(step: Path) -> None:
    file = step / "completions.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:5]))


def not_text(step: Path) -> None:
    (step / "completions.jsonl").write_bytes(b"\xff\n")


def no_completions(step: Path) -> None:
    (step / "completions.jsonl").unlink()


def torn_summary(step: Path) -> None:
    file = step / "summary.json"
    file.write_bytes(file.read_bytes()[:200])


def other_summary(step: Path) -> None:
    (step / "summary.json").write_text('{"a": 1}\n')


DAMAGE = {
    torn_completions: r"completions.jsonl, line \d+ is damaged",
    lost_lines: "completions.jsonl has 5 of 24 samples",
    not_text: "completions.jsonl is not UTF-8 text",
    no_completions: "completions.jsonl is missing",
    torn_summary: "summary.json is damaged",
    other_summary: "summary.json is damaged",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_results_are_evaluated_again(run: RunDir, damage: Callable[[Path], None]) -> None:
    assert evaluate_here(run.root, "trained", steps="1,2", **SAMPLED) == 0
    good = files_of(step_of(run))
    damage(step_of(run))
    with pytest.raises(EvalError, match=f"{DAMAGE[damage]}.*; evaluate the step again"):
        compare_steps(run.root, "trained", ["1", "2"])
    intact, damaged = regrade_evaluations(run.root, "trained")
    assert isinstance(intact, Regraded)
    assert isinstance(damaged, Unfinished)
    assert (intact.name, damaged.name, damaged.code) == ("step_1", "step_2", "bad_evaluation")
    assert re.search(DAMAGE[damage], damaged.error)
    (row,) = [row for row in read_table(step_of(run).parent) if row["name"] == "step_2"]
    assert (row["status"], row["code"], row["accuracy"]) == ("damaged", "bad_evaluation", "")
    assert re.search(DAMAGE[damage], row["error"])
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert files_of(step_of(run)) == good
    assert [row["status"] for row in read_table(step_of(run).parent)] == ["ok", "ok"]


def test_a_damaged_table_is_rewritten(run: RunDir) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    table, metrics = step_of(run).parent / TABLE, step_of(run) / "metrics.csv"
    good = table.read_bytes(), metrics.read_bytes()
    for damaged in (b"na", b"step,name,status\n,,\nx,y,z\n", b"\xff\xfe\x00"):
        table.write_bytes(damaged)
        metrics.write_bytes(damaged)
        (evaluation,) = list_evaluations(run.root, "trained")
        assert evaluation["metrics"] == []
        assert len(list(regrade_evaluations(run.root, "trained"))) == 1
        assert (table.read_bytes(), metrics.read_bytes()) == good


def test_line_separators_in_completions_are_kept(run: RunDir) -> None:
    """U+2028 ends a line for str.splitlines, but not in JSON."""
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    file = step_of(run) / "completions.jsonl"
    file.write_text(file.read_text().replace('"completion": "', '"completion": "\u2028\x85', 1), encoding="utf-8")
    (step,) = regrade_evaluations(run.root, "trained")
    assert isinstance(step, Regraded)
    assert len(read_completion_rows(step_of(run))) == step.n


# ---------------------------------------------------------------------------------------------------- other settings


def test_results_of_other_settings_are_restored(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    sampled = files_of(step_of(run))
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    greedy = files_of(step_of(run))
    (kept,) = (step_of(run).parent / SUPERSEDED).iterdir()
    assert files_of(kept) == sampled
    items = record_generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert files_of(step_of(run)) == sampled
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    assert files_of(step_of(run)) == greedy
    assert items == []


def test_partial_samples_survive_other_settings(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate_until(run, 3, torn=True)
    done = set(partial_of(run).completions())
    assert done
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    items = record_generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert sorted(items) == sorted(set(range(24)) - done)


def test_a_stopped_evaluation_prints_no_old_results(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    capsys.readouterr()

    def interrupted(self: InProcessPool, wait_s: float = 0.2) -> list[None]:
        os.kill(os.getpid(), signal.SIGINT)
        return []

    monkeypatch.setattr(InProcessPool, "events", interrupted)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 130
    printed = capsys.readouterr().out
    assert "step_2: incomplete: 0 of 24 samples done" in printed
    assert "accuracy" not in printed


def test_a_failure_of_the_parent_is_in_status_json(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grpo_train.evaluation.runner.write_step", full)
    with pytest.raises(OSError, match="No space left"):
        evaluate_here(run.root, "trained", steps="2", **SAMPLED)
    status = read_json(step_of(run).parent / "status.json") or {}
    assert (status["state"], status["exit_code"], status["pending"]) == ("crashed", 1, [])
    assert "No space left on device" in status["error"]["summary"]
    assert status["error"]["code"] == "disk_full"


def test_a_kill_between_two_renames_is_repaired(tmp_path: Path) -> None:
    for name in (".a b.0123abcd.old", ".a b.4567abcd.tmp", "c", ".c.0123abcd.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / ".status.json.12.0123abcd.tmp").write_text("{")
    restore_torn(tmp_path)
    assert {path.name: (path / "file").read_text() for path in tmp_path.iterdir()} == {
        "a b": ".a b.0123abcd.old",
        "c": "c",
    }
