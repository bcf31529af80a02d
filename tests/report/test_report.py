"""``grpo-train report``: what a report of real runs says, and how it fails."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo_train.evaluation.report.compare import compare_steps
from grpo_train.report.html import to_html
from grpo_train.report.markdown import to_markdown
from grpo_train.report.page import lay_out
from grpo_train.report.report import Event, Report, make_report
from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.display import fraction, signed
from grpo_train.run_dir.files import to_json
from tests.support.engine import command_here, grpo_train, resume_here, rows


class Words(HTMLParser):
    """The text of a page, and its tags with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def written(root: Path, *names: str, price: float | None = None) -> tuple[Report, str, str]:
    """The report of some runs, as data, as the text of its HTML, and as Markdown."""
    report = make_report(root, names, price)
    page = lay_out(report)
    return report, Words(to_html(page)).text, to_markdown(page)


def test_one_command_writes_both_formats(first: RunDir, tmp_path: Path) -> None:
    first.status_file.write_text(to_json({"state": "finished", "run_seconds": 7200, "device": "2× NVIDIA H200"}))
    files = tmp_path / "run.html", tmp_path / "run.md"
    done = command_here("report", "first", "-o", files[0], "-o", files[1], "--price", "2.49", root=first.root)
    assert done.returncode == 0, done.stderr
    assert str(files[0]) in done.stdout
    html, markdown = (file.read_text() for file in files)
    for said in (Words(html).text, markdown):
        for title in ("Curves", "Held-out evaluations", "Health", "Completions", "Configuration", "Versions"):
            assert title in said
        said = said.replace("\\", "")
        assert "$4.98 (at $2.49/h)" in said
        assert "2 h 00 m" in said
        assert "2× NVIDIA H200" in said
        assert "transformers" in said


def test_html_loads_nothing_from_elsewhere(two_runs: Path) -> None:
    page = Words(to_html(lay_out(make_report(two_runs, ["first"]))))
    addresses = ("src", "href", "action", "data", "srcset", "style")
    assert not [tag for tag, given in page.tags if any(name in given for name in addresses)]
    assert not {"link", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}


def test_intervals_are_those_of_the_evaluation(two_runs: Path) -> None:
    _, html, markdown = written(two_runs, "first")
    (evaluation,) = list_evaluations(two_runs, "first")
    assert len(evaluation["metrics"]) == 2
    for row in evaluation["metrics"]:
        low, high = (fraction(float(row[key])) for key in ("ci_low", "ci_high"))
        assert f"[{low}, {high}]" in html
        assert f"\\[{low}, {high}\\]" in markdown


def test_pairs_of_one_run_are_those_of_compare(two_runs: Path) -> None:
    report, html, _ = written(two_runs, "first")
    ((expected,), _) = compare_steps(two_runs, "first", ["0", "2"])
    assert [pair.result for pair in report.runs[0].pairs] == [expected]
    assert f"[{signed(expected.low, fraction)}, {signed(expected.high, fraction)}]" in html


def test_runs_are_compared_at_the_same_steps(two_runs: Path) -> None:
    report, html, _ = written(two_runs, "first", "second")
    assert [(pair.name, pair.reference) for pair in report.pairs] == [
        ("B step_0", "A step_0"),
        ("B step_2", "A step_2"),
    ]
    start = report.pairs[0].result
    assert start is not None
    assert start.difference == 0  # both start from the same model
    assert "B step_2" in html


@pytest.mark.parametrize(("key", "value", "compared"), [("split", "train", False), ("seed", 9, True)])
def test_other_settings_are_not_compared(root_of_two: Path, key: str, value: object, compared: bool) -> None:
    summary = root_of_two / "eval_runs/second_addition/step_2_addition/summary.json"
    facts = json.loads(summary.read_text())
    facts["key"]["samples"][key] = value
    summary.write_text(to_json(facts))
    report, html, _ = written(root_of_two, "first", "second")
    assert (report.pairs[1].result is not None) == compared
    assert ("under different settings" in html) != compared


def test_comparison_shows_only_what_differs(two_runs: Path) -> None:
    _, _, markdown = written(two_runs, "first", "second")
    section = markdown.split("## Configuration")[1].split("###")[0]
    keys = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert keys == ["optimizer.learning_rate", "optimizer.warmup_steps"]
    assert "| `optimizer.learning_rate` | `3e-4` | `1e-3` |" in section


def test_a_resume_with_another_learning_rate_is_shown(root_of_two: Path) -> None:
    """In the facts, the table of what differs, and over the curves, which are the logged values."""
    change = {"event": "resumed", "step": 1, "from_step": 1, "changes": {"optimizer.learning_rate": [0.0003, 0.002]}}
    with (root_of_two / "training_runs/first/logs/events.jsonl").open("a") as events:
        events.write(to_json(change) + "\n")
    _, html, _ = written(root_of_two, "first")
    assert "3e-4, 2e-3 from step 1" in html
    assert "Above the charts: Δ changed config." in html
    report, html, markdown = written(root_of_two, "first", "second")
    assert "Above the charts, after the letter of the run: Δ changed config." in html
    assert "| `optimizer.learning_rate` | `3e-4→2e-3` | `1e-3` |" in markdown
    assert "means of" not in html
    assert report.runs[0].events[-1] == Event(1, "Δ", "A")


def test_no_warning_is_said_of_the_log(two_runs: Path) -> None:
    """A run may be collapsed without a warning."""
    report = make_report(two_runs, ["first"])
    report.runs[0].log.conditions.clear()
    assert "Warnings in the log: none." in to_markdown(lay_out(report))


def test_config_shows_what_is_not_the_default(two_runs: Path) -> None:
    _, _, markdown = written(two_runs, "first")
    assert "| `task.name` | `addition` | `gsm8k` |" in markdown
    assert "keys have their default" in markdown


def test_completions_are_those_of_the_log(two_runs: Path) -> None:
    report, html, _ = written(two_runs, "first")
    run = RunDir(two_runs / "training_runs" / "first")
    logged = [row["completion"] for row in rows(run, "rollouts.jsonl")]
    last, unusual = report.runs[0].samples
    assert {"correct", "wrong", "longest"} <= {why for sample in last.rows for why in sample.why}
    assert unusual.title.startswith("Highest grad_norm")
    for sample in [*last.rows, *unusual.rows]:
        assert sample.row["completion"] in logged
        assert sample.row["completion"].strip() in html


def test_superseded_rows_are_left_out(first: RunDir) -> None:
    before = rows(first)
    resume_here(first, "1", total=2)
    report, html, _ = written(first.root, "first")
    log = report.runs[0].log
    assert log.superseded == 1
    assert log.metrics["reward"].steps.tolist() == [1, 2]
    assert log.metrics["reward"].values.tolist() == [row["reward"] for row in before]  # resumed bit-exactly
    assert "1 row left out: a resume replaced" in html
    assert "R resume" in html


def test_damaged_rows_are_counted(first: RunDir) -> None:
    with (first.logs / "train_log.jsonl").open("ab") as log:
        log.write(b'{"step": 3, "rew\n[1, 2]\n{"reward": 1}\n\xff\xfe\n{"step": "x"}\n{"step": 4')
    report, html, markdown = written(first.root, "first")
    assert (report.runs[0].log.rows, report.runs[0].log.damaged) == (2, 5)
    for said in (html, markdown.replace("\\", "")):
        assert "5 damaged rows of train_log.jsonl left out" in said


@pytest.mark.parametrize("file", ["config.yaml", "status.json", "launch.json", "logs/rollouts.jsonl", "logs/gpu.jsonl"])
def test_a_damaged_file_costs_its_part_only(first: RunDir, file: str) -> None:
    (first.path / file).write_bytes(b"\x00{[\xff: damaged\n" * 3)
    report, html, _ = written(first.root, "first")
    assert report.runs[0].log.rows == 2
    assert "Curves" in html
    assert "step_2" in html


def test_a_log_that_is_not_a_file_is_named(first: RunDir) -> None:
    log = first.logs / "train_log.jsonl"
    log.unlink()
    log.mkdir()
    _, html, _ = written(first.root, "first")
    assert "train_log.jsonl: not a regular file" in html


def test_a_run_without_steps_has_a_report(first: RunDir) -> None:
    shutil.rmtree(first.logs)
    _, html, _ = written(first.root, "first")
    assert "No step has been logged." in html


def test_nan_and_infinities_are_counted(first: RunDir) -> None:
    with (first.logs / "train_log.jsonl").open("a") as log:
        for step, value in enumerate(["NaN", "Infinity", "-Infinity", 1e308, 0.5], 3):
            log.write(to_json({"step": step, "loss": value}) + "\n")
    _, html, _ = written(first.root, "first")
    assert "4 not finite" in html


def test_how_the_run_is_comes_before_its_curves(first: RunDir) -> None:
    with (first.logs / "train_log.jsonl").open("w") as log:
        for step in range(1, 81):
            log.write(to_json({"step": step, "reward": 0.01 * (step % 3) + (1.5 if step <= 40 else 0)}) + "\n")
    _, html, markdown = written(first.root, "first")
    for said in (html, markdown):
        head = said.partition("Curves")[0]
        assert "▲ collapsed: reward 1.510 ▼ 0.010, step 41" in head
        assert "▼ finished" in head


def test_a_long_run_stays_a_small_file(first: RunDir) -> None:
    head = ", ".join(f'"metric/{n}": {{0}}{n}.5' for n in range(40))
    with (first.logs / "train_log.jsonl").open("w") as log:
        for step in range(1, 100_001):
            value = step * 7919 % 1000 + 1
            log.write(f'{{"step": {step}, "reward": {value / 1000}, {head.replace("{0}", str(value))}}}\n')
    report = make_report(first.root, ["first"])
    assert report.runs[0].log.rows == 100_000
    assert len(to_html(lay_out(report))) < 1_000_000


ERRORS = {
    "no such run": (["firts"], "no run named 'firts'", "did you mean first?"),
    "no run": ([], "Missing argument", ""),
    "unknown format": (["first", "-o", "run.pdf"], "-o run.pdf: unknown format '.pdf'", ".html or .md"),
    "no directory": (["first", "-o", "/nowhere/run.html"], "/nowhere is not a directory", "-o /nowhere/run.html"),
    "negative price": (["first", "--price", "-1"], "--price", ""),
}


@pytest.mark.parametrize("what", ERRORS)
def test_wrong_usage_names_the_fix(two_runs: Path, what: str) -> None:
    arguments, *messages = ERRORS[what]
    done = command_here("report", *arguments, root=two_runs)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for message in messages:
        assert message in done.stderr


def test_an_output_that_cannot_be_written_exits_1(two_runs: Path, tmp_path: Path) -> None:
    (tmp_path / "run.html").mkdir()
    done = grpo_train("report", "first", "-o", tmp_path / "run.html", root=two_runs)
    assert done.returncode == 1
    assert f"error: {tmp_path / 'run.html'}" in done.stderr


def test_too_many_runs_are_refused(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_train.report.report.LETTERS", "A")
    with pytest.raises(Exception, match="2 runs: a report compares at most 1"):
        make_report(two_runs, ["first", "second"])


def test_a_run_given_twice_is_one(two_runs: Path) -> None:
    path = str(two_runs / "training_runs" / "first")
    assert not make_report(two_runs, ["first", path]).is_comparison
