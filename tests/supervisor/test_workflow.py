"""Workflows: the stages of a config, the cursor among them, rules that stop a run, and real runs of all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import ConfigError, dump_config, load_config
from grpo_train.config.schema import Config
from grpo_train.config.sections.workflow import Collapse, Plateau
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.evaluations import list_evaluations
from grpo_train.supervisor.process import BEYOND_S, HEARTBEAT_S, LEFT_OUT, LOOK_S
from grpo_train.supervisor.stages import Stage, all_stages, stages_left
from grpo_train.supervisor.stop_rules import StopRules, collapse, over_budget, plateau
from grpo_train.supervisor.workflow import (
    RunWorkflow,
    confirmation_of,
    edited,
    edits,
    position,
    read_workflow,
    remaining,
)
from tests.support.engine import (
    REPOSITORY,
    assert_same_run,
    command_here,
    config_text,
    events,
    grpo_train,
    rows,
    run_of,
    steps_logged,
    train_here,
    wait_for,
    write_config,
)
from tests.support.stores import other_disk
from tests.support.supervising import supervised

NIGHT = """
workflow:
  stages:
    - repeat: {every: 2, until: 5, stages: [train, eval: {datasets: [gsm8k], num_problems: 200}, backup]}
    - eval: {steps: all}
    - backup: {to: s3}
    - cleanup: {keep_latest: true}
"""


def names(config: Config) -> list[str]:
    return [stage.name for stage in all_stages(config)]


# ---------------------------------------------------------------------------------------------------- the stages


def test_a_repeat_is_written_out() -> None:
    config = load_config(NIGHT)
    assert config.run.total_steps == 5, "the last step of the workflow"
    assert names(config) == [
        "train to step 2", "evaluate step 2 on gsm8k (num-problems 200)", "back up at step 2",
        "train to step 4", "evaluate step 4 on gsm8k (num-problems 200)", "back up at step 4",
        "train to step 5", "evaluate step 5 on gsm8k (num-problems 200)", "back up at step 5",
        "evaluate steps all at step 5", "back up at step 5 (to s3)", "clean up at step 5 (keep-latest)",
    ]  # fmt: skip
    run = RunDir(Path("/root/training_runs/x"))
    commands = [stage.command(run, 1, None)[3:] for stage in all_stages(config)]
    where = ["--training-run", "x", "--root", "/root"]
    assert commands[2] == ["backup", *where]
    assert commands[-2] == ["backup", *where, "--to", "s3"]
    assert commands[-1] == ["cleanup", *where, "--keep-latest", "--yes"]
    assert commands[-3] == ["eval", "--training-run", str(run.path), "--steps", "all"]
    assert commands[1][3:] == ["--steps", "2", "--eval-dataset", "gsm8k", "--num-problems", "200"]


def test_more_steps_than_the_stages_train_come_last() -> None:
    config = load_config(NIGHT, ["run.total_steps=9"])
    assert names(config)[-1] == "train to step 9"
    assert names(config)[:-1] == names(load_config(NIGHT))


def test_a_repeat_without_an_end_follows_the_total() -> None:
    text = "run: {total_steps: %d}\nworkflow: {stages: [{repeat: {every: 4, stages: [train, backup]}}]}"
    trained = [stage.until for stage in all_stages(load_config(text % 10)) if stage.kind == "train"]
    assert trained == [4, 8, 10]


def test_a_workflow_survives_its_own_yaml() -> None:
    config = load_config(f"{NIGHT}  stop_when:\n    - collapse: {{below: 0.4, for: 3}}\n    - plateau: {{steps: 9}}\n")
    assert load_config(dump_config(config)) == config
    assert yaml.safe_load(dump_config(config))["workflow"]["stages"][0]["repeat"]["stages"][0] == {"train": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workflow:\n  stages:\n    - trian\n", "line 3: unknown key 'workflow.stages.0.trian'; did you mean"),
        ("workflow:\n  stages:\n    - eval: {num_problem: 3}\n", "mean workflow.stages.0.eval.num_problems?"),
        ("workflow:\n  stages:\n    - train\n    - eval: {num_problems: 0}\n", "line 4: workflow.stages.1.eval.num_p"),
        ("workflow: {stages: [{train: {}, eval: {}}]}", "eval, backup, cleanup, got train, eval"),
        ("workflow: {stages: [{repeat: {every: 5, stages: [eval]}}]}", "a repeat needs a train stage"),
        ("workflow: {stages: [{repeat: {every: 5, stages: [train: {until: 3}]}}]}", "train.until has no effect"),
        ("run: {total_steps: 3}\nworkflow: {stages: [train: {until: 4}]}", "train to step 4, beyond run.total_steps 3"),
        ("run: {eval_every: 3}\nworkflow: {stages: [train]}", "run.eval_every has no effect with workflow.stages"),
        ("workflow: {stages: [cleanup: {keep_latest: false}]}", "a cleanup keeps at least the latest checkpoint"),
        ("workflow: {stop_when: [collapse: {for: 0}]}", "workflow.stop_when.0.collapse.for: input should be greater"),
        ("budget: {dollars: 3}", "budget.dollars needs budget.price_per_hour"),
    ],
)  # fmt: skip
def test_mistakes_in_a_workflow_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text, source="c.yaml")
    assert message in str(caught.value)


# ---------------------------------------------------------------------------------------------------- the cursor

STAGES = st.lists(st.sampled_from(["train", "eval", "backup", "repeat 2", "repeat 3"]), min_size=1, max_size=5)


def workflow_of(kinds: list[str], total: int) -> Config:
    stages: list[Any] = [
        {"repeat": {"every": int(kind[-1]), "stages": ["train", "eval"]}} if kind.startswith("repeat") else kind
        for kind in kinds
    ]
    return load_config(yaml.safe_dump({"run": {"total_steps": total}, "workflow": {"stages": stages}}))


@given(STAGES, st.integers(1, 9))
def test_training_only_goes_forward_to_the_total(kinds: list[str], total: int) -> None:
    stages = all_stages(workflow_of(kinds, total))
    trained = [stage.until for stage in stages if stage.kind == "train"]
    assert trained == sorted(trained)
    assert trained[-1] == total
    assert all(stage.until <= total for stage in stages)


@given(STAGES, st.integers(1, 9), st.integers(0, 20), st.integers(0, 9))
def test_a_recorded_cursor_is_found_again(kinds: list[str], total: int, done: int, trained: int) -> None:
    stages = all_stages(workflow_of(kinds, total))
    done = min(done, len(stages))
    recorded = {"done": [stage.name for stage in stages[:done]]}
    found = position(stages, recorded, trained, [])
    lost = [i for i, stage in enumerate(stages[:done]) if stage.kind == "train" and stage.until > trained]
    assert found == (lost[0] if lost else done)


@given(STAGES, STAGES, st.integers(1, 9), st.integers(0, 20))
def test_an_edited_workflow_repeats_nothing_that_is_done(
    before: list[str], after: list[str], total: int, done: int
) -> None:
    old, new = (all_stages(workflow_of(kinds, total)) for kinds in (before, after))
    names_done = [stage.name for stage in old[:done]]
    cursor = position(new, {"done": names_done}, total, [])
    passed = [stage.name for stage in new[:cursor]]
    for name in passed:
        assert passed.count(name) <= names_done.count(name)
    if cursor < len(new):
        assert names_done.count(new[cursor].name) <= passed.count(new[cursor].name) or passed != names_done


def test_a_cursor_survives_and_edits_show_as_a_diff(tmp_path: Path) -> None:
    run, config = create_run(tmp_path, {}, "one"), load_config(NIGHT)
    workflow = RunWorkflow(run, config)
    assert (workflow.cursor, edited(run, config)) == (0, [])
    workflow.advance()
    workflow.advance(failure="the disk is full")
    assert workflow.failures == f"{workflow.stages[1].name}: the disk is full"
    assert read_workflow(run)["failed"] == {workflow.stages[1].name: "the disk is full"}
    assert read_workflow(run)["done"] == [stage.name for stage in workflow.stages[:2]]
    # The checkpoint is missing: training is done again.
    again = RunWorkflow(run, config)
    assert (again.cursor, again.failed) == (0, {})
    assert [stage.name for stage in remaining(run, config, 2)] == names(config)[2:]
    assert edited(run, load_config(NIGHT, ["run.total_steps=9"])) == [], "more steps are not an edit"
    other = load_config(NIGHT.replace("num_problems: 200", "num_problems: 50"))
    assert edited(run, other)[:2] == [
        "- evaluate step 2 on gsm8k (num-problems 200)", "+ evaluate step 2 on gsm8k (num-problems 50)",
    ]  # fmt: skip
    assert remaining(run, other, 2)[0].name == "evaluate step 2 on gsm8k (num-problems 50)"
    assert confirmation_of(edits(run, config)) == "", "nothing to confirm"
    assert confirmation_of(edits(run, other)) != confirmation_of(edits(run, load_config("workflow: {stages: [train]}")))


def test_a_run_of_an_older_version_continues(tmp_path: Path) -> None:
    run, config = create_run(tmp_path, {}, "one"), load_config(config_text(run__eval_every=2))
    assert RunWorkflow(run, config).stages == stages_left(0, config)
    assert remaining(run, config, 2) == [Stage("train", 4), Stage("eval", 4), Stage("train", 6), Stage("eval", 6)]


# ---------------------------------------------------------------------------------------------------- stop rules

VALUES = st.lists(st.floats(-5, 5), max_size=40)


@given(VALUES, st.integers(2, 8), st.floats(0, 1))
def test_a_plateau_is_a_small_gain_of_the_mean(values: list[float], steps: int, gain: float) -> None:
    found = plateau(values, Plateau(steps=steps, min_gain=gain))
    if len(values) < 2 * steps:
        assert not found
    else:
        last, before = sum(values[-steps:]) / steps, sum(values[-2 * steps : -steps]) / steps
        assert found == (last - before < gain) or last - before == pytest.approx(gain)


@given(VALUES, st.integers(1, 8), st.floats(0.1, 0.9))
def test_a_collapse_is_far_below_the_best(values: list[float], length: int, below: float) -> None:
    found = collapse(values, Collapse.model_validate({"for": length, "below": below}))
    windows = [values[i : i + length] for i in range(len(values) - 2 * length + 1)]
    best = max((sum(window) / length for window in windows), default=0.0)
    if found:
        assert best > 0
        assert all(value < below * best + 1e-6 for value in values[-length:])
    elif windows and best > 1e-6:
        assert any(value >= below * best - 1e-6 for value in values[-length:])


def test_rules_follow_a_log_that_is_rewound(tmp_path: Path) -> None:
    run = create_run(tmp_path, {}, "one")
    config = load_config("workflow: {stop_when: [collapse: {metric: reward, below: 0.5, for: 2}]}")
    rules, log = StopRules(run, config, from_step=1), run.logs / "train_log.jsonl"

    def write(step: int, reward: Any) -> None:
        with log.open("a") as file:
            file.write(json.dumps({"step": step, "reward": reward}) + "\n")

    for step, reward in ((1, 9.0), (2, 1.0), (3, 1.0), (4, 0.1)):
        write(step, reward)
    assert rules.broken() == ""
    for step, reward in ((3, 1.0), (4, "NaN"), (5, 0.1)):  # a resume from step 2
        write(step, reward)
    with log.open("a") as file:
        file.write('{"step": 6, "rew')
    assert rules.broken() == ""
    with log.open("a") as file:
        file.write('ard": 0.4}\n')
    assert rules.broken() == "collapse: reward was below 0.5 of its best for 2 steps"


def test_a_budget_counts_hours_or_dollars() -> None:
    config = load_config("budget: {hours: 10, dollars: 25, price_per_hour: 2.5}")
    assert over_budget(config, 9.99 * 3600) == ""
    assert over_budget(config, 10 * 3600) == "budget.hours: 10.0 of 10 h are used"
    short = load_config("budget: {hours: 0.006, dollars: 0.004, price_per_hour: 1}")
    assert over_budget(short, 22) == "budget.hours: 0.0061 of 0.006 h are used"
    assert over_budget(short, 15) == "budget.dollars: $0.0042 of $0.004 are spent"
    cheap = load_config("budget: {hours: 100, dollars: 25, price_per_hour: 2.5}")
    assert over_budget(cheap, 10.1 * 3600) == "budget.dollars: $25.25 of $25 are spent"
    assert over_budget(load_config(""), 1e9) == ""


# ---------------------------------------------------------------------------------------------------- real runs


def settings(root: Path, name: str, stages: list[Any], **changes: Any) -> tuple[RunDir, Path]:
    cfg = write_config(root, f"{name}.yaml", workflow__stages=stages, **changes)
    return run_of(root, name), cfg


def state(run: RunDir) -> dict[str, Any]:
    return run.read_status() or {}


@pytest.fixture
def backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is the default destination of backups."""
    folder = tmp_path / "config" / "grpo-tui"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with other_disk(tmp_path) as place:
        destination = {"name": "disk", "folder": str(place)}
        (folder / "backup.yaml").write_text(yaml.safe_dump({"destinations": [destination]}))
        yield place


def test_a_workflow_runs_every_stage(root: Path, backups: Path) -> None:
    stages = [
        {"repeat": {"every": 2, "stages": ["train", "eval", "backup"]}},
        {"eval": {"steps": [0, 2]}},
        "backup",
        "cleanup",
    ]
    run, cfg = settings(root, "whole", stages, run__total_steps=2)
    planned = command_here("plan", "--cfg", cfg, root=root)
    assert planned.returncode == 0, planned.stderr
    assert "no estimate" in planned.stdout
    done = grpo_train("train", "--cfg", cfg, "--run-name", run.name, root=root, timeout=300)
    assert (done.returncode, state(run)["state"], state(run)["reason"]) == (0, "finished", None), done.stdout
    finished = [row["stage"] for row in rows(run, "events.jsonl") if row["event"] == "stage_done"]
    assert finished == names(load_config(cfg.read_text()))
    assert json.loads(command_here("safe-to-terminate", "--json", root=root).stdout)["safe"], "its end is stored, too"
    left = [checkpoint.step for checkpoint in run.checkpoints()]
    assert left[-1] == 2
    assert 1 not in left, "read back from the backup and removed"
    assert_same_run(run, train_here(root, write_config(root, run__total_steps=2), "straight"), 2)
    estimated = json.loads(command_here("plan", "--cfg", cfg, "--json", root=root).stdout)
    assert estimated["unknown_stages"] == 0
    assert run.name in estimated["estimated_from"]
    assert estimated["seconds"] > 0
    # Finished with all stages; more steps only train, and back up as the repeat says.
    assert "already reached" in command_here("resume", "--training-run", run.name, root=root).stderr
    left = command_here("plan", "--training-run", run.name, "--set", "run.total_steps=4", "--json", root=root)
    assert [row["stage"] for row in json.loads(left.stdout)["stages"]][:3] == [
        "train to step 4", "evaluate step 4", "back up at step 4",
    ]  # fmt: skip


def test_an_edited_workflow_is_confirmed(root: Path) -> None:
    stages = ["train", {"eval": {"steps": "final"}}]
    run = train_here(root, write_config(root, run__total_steps=2, workflow__stages=stages), "edited")
    with supervised(run, config_of(run), {"eval": [[]]}) as it:
        assert it.ended() == 0
    edit = ("--set", "workflow.stages=[train, eval: {steps: [0]}]")
    planned = command_here("resume", "--training-run", run.name, *edit, "--dry-run", "--json", root=root)
    plan = json.loads(planned.stdout)
    assert (planned.returncode, plan["run"], plan["step"], plan["total_steps"]) == (0, run.name, 2, 2), planned.stderr
    assert plan["left"] == ["evaluate step 0 at step 2"]
    assert [(row["change"], row["stage"], row["done"]) for row in plan["edits"]] == [
        ("kept", "train to step 2", True),
        ("removed", "evaluate steps final at step 2", True),
        ("added", "evaluate step 0 at step 2", False),
    ]
    assert plan["confirmation"]
    shown = command_here("resume", "--training-run", run.name, *edit, "--dry-run", root=root)
    assert "step 2, up to step 2: 1 stages\n  evaluate step 0 at step 2\n" in shown.stdout
    finished = command_here("resume", "--training-run", run.name, "--dry-run", "--json", root=root)
    assert "already reached step 2" in json.loads(finished.stdout)["error"]["message"]
    assert read_workflow(run)["done"] == ["train to step 2", "evaluate steps final at step 2"], "nothing was changed"
    refused = command_here("resume", "--training-run", run.name, *edit, root=root)
    assert refused.returncode == 2
    assert "  - evaluate steps final at step 2\n  + evaluate step 0 at step 2\n" in refused.stdout
    assert "rerun with --yes" in refused.stderr
    done = grpo_train("resume", "--training-run", run.name, *edit, "--yes", root=root, timeout=300)
    assert (done.returncode, state(run)["state"]) == (0, "finished"), done.stdout + done.stderr
    assert read_workflow(run)["done"] == ["train to step 2", "evaluate step 0 at step 2"]
    assert steps_logged(run) == [1, 2], "training was done"
    assert run.checkpoint("latest").step == 2
    assert [row["status"] for row in list_evaluations(root, run.name)[0]["metrics"]] == ["ok"]


# ----------------------------------------------------------------------------------------- stages without training


def planned_run(root: Path, **changes: Any) -> RunDir:
    """A run that has not started."""
    run = create_run(root, {}, "one")
    run.config_file.write_text(config_text(**changes))
    return run


def config_of(run: RunDir, *overrides: str) -> Config:
    return load_config(run.config_file.read_text(), overrides)


def test_a_failed_backup_does_not_end_training(tmp_path: Path) -> None:
    """Training does not wait for one; the last one is tried again after each of the waits."""
    run = planned_run(
        tmp_path, run__total_steps=3, workflow__stages=[{"train": {"until": 2}}, "backup", "train", "backup"]
    )
    with supervised(run, config_of(run), {"train": [["train:2"], ["train:3"]], "backup": [["exit:1"]]}) as it:
        for attempt, wait_s in enumerate((10, 60, 300), 1):
            it.prints("back up at step 3 failed; next attempt in", attempt)
            it.clock.settle()
            assert it.console.count(f"back up at step 3 failed; next attempt in {wait_s} s") == 1
            assert it.status["state"] == "running"
            it.clock.advance(wait_s + LOOK_S)
        assert (it.ended(), it.status["state"]) == (LEFT_OUT, "finished")
    said = "the store says no"
    assert it.status["reason"] == f"failed: back up at step 2: {said}; back up at step 3: {said}"
    assert [row["error"]["summary"] for row in rows(run, "events.jsonl") if row["event"] == "stage_failed"] == [
        said
    ] * 2
    assert [stage.until for stage in it.starts if stage.kind == "backup"] == [2, 3, 3, 3, 3]
    assert events(run).count("stage_failed") == 2
    assert f"back up at step 3 failed: {said}; the workflow continues" in it.console
    assert steps_logged(run) == [1, 2, 3]


@pytest.mark.parametrize(("code", "event", "reason"), [
    (2, "stage_failed", "failed: back up at step 1: the store says no"),  # a usage error: no attempt would help
    (3, "stage_incomplete", None),
])  # fmt: skip
def test_exit_codes_of_a_backup(tmp_path: Path, code: int, event: str, reason: str | None) -> None:
    run = planned_run(tmp_path, run__total_steps=1, workflow__stages=["train", "backup"])
    with supervised(run, config_of(run), {"train": [["train:1"]], "backup": [[f"exit:{code}"]]}) as it:
        assert (it.ended(), it.status["state"], it.status["reason"]) == (LEFT_OUT if reason else 0, "finished", reason)
    assert [stage.kind for stage in it.starts] == ["train", "backup"]
    assert event in events(run)


def test_a_killed_backup_is_restarted(tmp_path: Path) -> None:
    """It did not fail, it was ended: as a crash of training."""
    run = planned_run(tmp_path, run__total_steps=1, run__max_restarts=1, workflow__stages=["train", "backup"])
    with supervised(run, config_of(run), {"train": [["train:1"]], "backup": [["killed"], []]}) as it:
        it.waits_for("restarted")
        it.clock.advance(10 + LOOK_S)
        assert (it.ended(), it.status["state"], it.status["reason"]) == (0, "finished", None)


def test_a_stop_rule_saves_and_says_why(tmp_path: Path) -> None:
    rules = [{"plateau": {"steps": 2, "min_gain": 100.0}}]
    run = planned_run(tmp_path, run__total_steps=5000, workflow__stages=["train"], workflow__stop_when=rules)
    with supervised(run, config_of(run), {"train": [["train:4", "obeys"]]}) as it:
        wait_for(lambda: run.newest_step() == 4, "four steps")
        it.clock.advance(HEARTBEAT_S + 2 * LOOK_S)
        assert it.ended() == 0
    reason = "plateau: reward rose by less than 100 from the 2 steps before to the last 2 steps"
    assert (it.status["state"], it.status["reason"]) == ("stopped", reason)
    asked = next(row for row in rows(run, "events.jsonl") if row["event"] == "stop_asked")
    assert asked["by"] == reason
    assert "stopped_by_itself" in events(run)
    assert reason in command_here("show", run.name, root=tmp_path).stdout
    # A resume is measured from there: it trains before it may stop again.
    more = config_of(run, "run.total_steps=7", "workflow.stop_when=[plateau: {steps: 2, min_gain: 100.0}]")
    with supervised(run, more, {"train": [["train:7", "waits"]]}) as it:
        wait_for(lambda: run.newest_step() == 7, "three more steps")
        it.clock.advance(10 * HEARTBEAT_S)
        (run.path / "control" / "go").touch()
        assert (it.ended(), it.status["state"], run.newest_step()) == (0, "finished", 7)


def test_a_budget_stops_a_run_until_it_is_raised(tmp_path: Path) -> None:
    run = planned_run(tmp_path, run__total_steps=5000, workflow__stages=["train", "eval"], budget__hours=0.01)
    with supervised(run, config_of(run), {"train": [["train:2", "obeys"]]}) as it:
        wait_for(lambda: run.newest_step() == 2, "two steps")
        it.clock.advance(36 - HEARTBEAT_S)
        assert (it.status["state"], "stop_asked" in events(run)) == ("running", False)
        it.clock.advance(2 * HEARTBEAT_S)
        assert (it.ended(), it.status["state"]) == (0, "stopped")
    assert it.status["reason"] == "budget.hours: 0.01 of 0.01 h are used"
    assert "stopped_by_itself" in events(run)
    with supervised(run, config_of(run), {"train": [["train:3"]]}) as it:  # what is used counts
        assert (it.ended(), it.status["state"], it.starts) == (0, "stopped", [])
    refused = command_here("resume", "--training-run", run.name, root=tmp_path)
    assert (refused.returncode, "raise the limit with --set" in refused.stderr) == (2, True)


def test_a_step_that_never_ends_does_not_outlast_the_money_of_an_assistant(tmp_path: Path) -> None:
    """Also after somebody asked for a stop. A person's run goes on until it can save."""
    run = planned_run(tmp_path, run__total_steps=5000, run__stall_timeout=36_000, budget__hours=0.01)
    with supervised(run, config_of(run), {"train": [["train:2", "waits"]]}) as it:
        it.prints("waits")
        run.request_stop("somebody")
        it.clock.advance(36 + BEYOND_S + 3 * HEARTBEAT_S)
        assert it.status["state"] == "stopping"
        run.log_event("by_assistant", op="resume")
        it.clock.advance(3 * HEARTBEAT_S)
        assert (it.ended(), it.status["state"]) == (0, "stopped")
    assert it.status["reason"] == "budget.hours: 0.18 of 0.01 h are used"
    assert not run.stop_requested()


def test_the_example_is_what_the_documentation_says() -> None:
    text = (REPOSITORY / "config" / "workflows" / "gsm8k_night.yaml").read_text()
    config = load_config(text)
    assert config.run.total_steps == 400
    assert [stage.kind for stage in all_stages(config)][:3] == ["train", "eval", "backup"]
    assert [stage.kind for stage in all_stages(config)][-3:] == ["eval", "backup", "cleanup"]
    assert config.run.auto_resume
