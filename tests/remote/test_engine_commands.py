"""How the engine of a box is found, and what its commands answer: comparisons, reports, tasks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from remote.boxes import Box
from tests.remote.test_jobs import state
from tests.support.agent import ask, connected, eventually, refusal


def test_a_missing_engine_names_the_install_command(box: Box, tmp_path: Path, root: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "config").mkdir(parents=True)
    for settings, words in (
        ({"engine": []}, "on your machine, in a checkout of grpo-tui: grpo-tui up --box NAME"),
        ({"engine": [], "repo": str(repo)}, f"cd {repo} && make setup-box"),
        ({"engine": [], "repo": str(tmp_path / "nowhere")}, "correct 'repo' in boxes.yaml, or set 'code: sync'"),
        ({"engine": ["/no/such"]}, "boxes.yaml"),
        ({"engine": [], "activate": "source /no/such/conda.sh"}, "activate"),
        ({"engine": [], "activate": "true"}, "activate"),
    ):
        with connected(dataclasses.replace(box, **settings)) as (client, _):
            error = refusal(client, "launch", config_text="x")
            assert error.code == "no_engine", settings
            assert words in error.hint
    assert not list((root / "training_runs").glob("run_*")) if (root / "training_runs").exists() else True


def test_how_the_engine_is_found(box: Box, tmp_path: Path, root: Path) -> None:
    fake, repo = box.engine[0], tmp_path / "re po"
    (repo / ".venv/bin").mkdir(parents=True)
    (repo / "config").mkdir()
    (repo / ".venv/bin/grpo-train").symlink_to(fake)
    snippet = f"export PATH='{repo}/.venv/bin':$PATH X=\"a'b\""
    with connected(dataclasses.replace(box, engine=[], activate=snippet)) as (client, _):
        done = ask(client, "launch", config_text="obedient", run_name="by_activation")
        assert done["argv"][:5] == [done["argv"][0], "-c", f'{snippet} && exec "$@"', "--", "grpo-train"]
        eventually(lambda: state(root, "by_activation") == "running")
        ask(client, "kill", run="by_activation")
    with connected(dataclasses.replace(box, engine=[], repo=str(repo))) as (client, _):
        assert ask(client, "launch", config_text="x", dry_run=True)["argv"][0] == str(repo / ".venv/bin/grpo-train")


def test_the_engine_compares_evaluations(box: Box, root: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (root / "training_runs" / name).mkdir(parents=True)
        (root / "training_runs" / name / "launch.json").write_text("{}")
    engine = tmp_path / "engine"
    row = {"name": "step_1", "run": "b", "dataset": "x", "step": 1, "n": 4, "difference": 0.5, "low": 0.1, "high": 0.9}
    found = {"comparisons": [row], "errors": [{"error": "step_2 of b is damaged", "code": "bad_evaluation"}]}
    params = {"run": "a", "others": ["b"], "steps": [1, 2]}
    asked = f"compare --training-run=a --with=b --steps=1,2 --json --root {root}"
    for script, message in (
        (f"echo '{json.dumps(found)}'; exit 1", ""),
        ("echo 'No such option: --with' >&2; exit 2", "the engine on this box is too old for this"),
        ("echo 'error: no step' >&2; exit 1", "grpo-train compare: no step"),
    ):
        engine.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] || {{ echo "error: $*" >&2; exit 9; }}\n{script}\n')
        engine.chmod(0o755)
        with connected(dataclasses.replace(box, engine=[str(engine)])) as (client, _):
            if message:
                assert refusal(client, "compare_evaluations", **params).message == message
            else:
                reply = ask(client, "compare_evaluations", **params)
                assert reply == {"comparisons": [row], "problems": ["step_2 of b is damaged"]}
                assert refusal(client, "compare_evaluations", run="a", others=["nobody"]).code == "no_run"


def test_the_engine_makes_a_report(box: Box, root: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (root / "training_runs" / name).mkdir(parents=True)
        (root / "training_runs" / name / "launch.json").write_text("{}")
    engine = tmp_path / "engine"
    asked = f"report --root {root} -o $5 --price 2.49 -- a b"
    for script, message in (
        ('echo "<html>a and b</html>" > "$5"', ""),
        ("echo 'No such command' >&2; exit 2", "the engine on this box is too old to make a report"),
        ("echo 'error: a is damaged' >&2; exit 1", "the engine did not make the report: a is damaged"),
        ("true", "the engine did not make the report: exit code 0"),
    ):
        engine.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] || {{ echo "error: $*" >&2; exit 9; }}\n{script}\n')
        engine.chmod(0o755)
        with connected(dataclasses.replace(box, engine=[str(engine)])) as (client, _):
            if message:
                assert refusal(client, "report", runs=["a", "b"], price=2.49).message == message
            else:
                assert ask(client, "report", runs=["a", "b"], price=2.49)["page"] == b"<html>a and b</html>\n"
                assert refusal(client, "report", runs=["a", "nobody"]).code == "no_run"
                assert refusal(client, "report", runs=[]).code == "bad_request"


def test_tasks_are_listed_by_the_engine(box: Box, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    listed = """echo a warning of some library; echo '{"tasks": {"addition": "sums"}}'"""
    for script in (listed, "echo addition: sums", "exit 3", "echo []"):
        engine.write_text(f"#!/bin/sh\n[ \"$*\" = 'tasks --json' ] || exit 9\n{script}\n")
        engine.chmod(0o755)
        with connected(dataclasses.replace(box, engine=[str(engine)])) as (client, _):
            if script == listed:
                assert ask(client, "list_tasks") == {"tasks": {"addition": "sums"}}
            else:
                assert refusal(client, "list_tasks").code == "no_answer"
