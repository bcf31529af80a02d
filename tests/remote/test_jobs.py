"""Launch, stop, kill, evaluate and resume on a local box, in real tmux sessions, with a fake engine."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import StatusWriter, create_run, open_run, write_manifest
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.processes import find_by_run_id, kill_all, run_id_of
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import RunsReported, SessionsReported
from tests.support.agent import Recorder, ask, connected, eventually, refusal


@pytest.fixture
def link(box: Box) -> Iterator[tuple[BoxClient, Recorder]]:
    with connected(box) as pair:
        yield pair


def dead_session(client: BoxClient) -> dict[str, Any]:
    """The one session whose command has exited; tmux learns its exit status a moment later."""

    def found() -> dict[str, Any] | None:
        dead = [s for s in ask(client, "list_sessions")["sessions"] if s["dead"]]
        return dead[0] if dead and (dead[0]["exit_status"] is not None or dead[0]["signal"]) else None

    return eventually(found)  # type: ignore[return-value]


def state(root: Path, run: str) -> str:
    return open_run(root, run).observed_state().state


def test_launch_watch_and_stop(link: tuple[BoxClient, Recorder], root: Path) -> None:
    client, recorder = link
    dry = ask(client, "launch", config_text="obedient", run_name="run_a.b", overrides=["run.seed=1"], dry_run=True)
    assert not (root / "training_runs" / "run_a.b").exists()
    assert dry["shell_argv"][-4:] == ["--run-name", "run_a.b", "--root", str(root)]
    done = ask(client, "launch", config_text="obedient", run_name="run_a.b", overrides=["run.seed=1"], nproc=2, by="me")
    assert done["argv"] == dry["argv"] == [*dry["argv"][:1], "supervise", "run_a.b", "--root", str(root)]
    assert done["session"] == "run_a_b"
    launched = open_run(root, "run_a.b").read_launch()
    assert launched["overrides"] == ["run.seed=1"]
    assert (launched["nproc"], launched["by"], launched["config_text"]) == (2, "me", "obedient")
    recorder.wait(lambda e: isinstance(e, RunsReported) and any(r["step"] and r["step"] > 2 for r in e.runs))
    recorder.wait(lambda e: isinstance(e, SessionsReported) and any(s["run"] == "run_a.b" for s in e.sessions))
    assert "fake engine: supervise" in ask(client, "capture_pane", session="run_a_b")["text"]
    assert refusal(client, "resume", run="run_a.b").code == "run_is_live"
    assert ask(client, "stop", run="run_a.b", by="me")["state"] == "running"
    recorder.wait(lambda e: isinstance(e, RunsReported) and any(r["state"] == "stopped" for r in e.runs))
    session = dead_session(client)
    assert (session["exit_status"], session["signal"]) == (0, "")
    shown = ask(client, "show_run", run="run_a.b")
    assert shown["summary"]["state"] == "stopped"
    assert shown["config_text"] == "obedient"
    assert [event["event"] for event in shown["events"]] == ["launched", "stop_asked"]
    assert refusal(client, "stop", run="run_a.b").code == "not_running"
    assert refusal(client, "kill", run="run_a.b").code == "not_running"


def test_a_repeated_key_launches_nothing(link: tuple[BoxClient, Recorder], box: Box, root: Path) -> None:
    client, _ = link
    with connected(box) as (other, _), ThreadPoolExecutor() as pool:
        both = [
            pool.submit(ask, who, "launch", config_text="obedient", idempotency_key="k1") for who in (client, other)
        ]
        first, second = (future.result() for future in both)
    again = ask(client, "launch", config_text="obedient", idempotency_key="k1")
    assert first["run"] == second["run"] == again["run"]
    assert sorted([first["started"], second["started"], again["started"]]) == [False, False, True]
    assert len(list((root / "training_runs").glob("run_*"))) == 1
    ask(client, "kill", run=first["run"])


def test_output_of_a_failed_engine_is_kept(link: tuple[BoxClient, Recorder]) -> None:
    client, _ = link
    done = ask(client, "launch", config_text="short")
    assert dead_session(client)["exit_status"] == 7
    assert "fake engine" in ask(client, "capture_pane", session=done["session"])["text"]
    assert "fake engine" in ask(client, "capture_pane", session=done["session"], lines=5)["text"]


def test_kill_by_sigterm(link: tuple[BoxClient, Recorder], root: Path) -> None:
    client, _ = link
    run = ask(client, "launch", config_text="obedient")["run"]
    eventually(lambda: state(root, run) == "running")
    result = ask(client, "kill", run=run, by="me")
    assert result == {"run": run, "state": "killed", "left": [], "forced": False}
    assert find_by_run_id(run_id_of(root / "training_runs" / run)) == []
    assert dead_session(client)["signal"] == "SIGTERM"


def test_kill_of_processes_that_ignore_sigterm(box: Box, root: Path) -> None:
    """A kill is completed after the client that requested it is gone."""
    with connected(box, process=True) as (client, _):
        run = ask(client, "launch", config_text="stubborn")["run"]
        run_id = run_id_of(root / "training_runs" / run)
        try:
            eventually(lambda: len(find_by_run_id(run_id)) >= 2 and state(root, run) == "running")
            client.request("kill", 40, run=run, patience_s=1.5)
            eventually(lambda: (root / "training_runs" / run / "logs" / "events.jsonl").read_text().count("kill_asked"))
            client.close()
            eventually(lambda: state(root, run) == "killed", timeout=30)
            assert find_by_run_id(run_id) == []
            assert read_json(root / "training_runs" / run / "status.json")["state"] == "killed"  # type: ignore[index]
        finally:
            kill_all(run_id)


def test_roots_sharing_a_run_name_are_independent(box: Box, root: Path, tmp_path: Path) -> None:
    """Both use one tmux server; a session belongs to the root of its agent, under any symbolic link."""
    demo, linked = tmp_path / "demo", tmp_path / "linked"
    linked.symlink_to(root)
    boxes = [dataclasses.replace(box, root=str(folder)) for folder in (root, demo, linked)]
    with connected(boxes[0]) as (real, _), connected(boxes[1]) as (other, _), connected(boxes[2]) as (same, _):
        for name in ("one", "two"):
            ask(real, "launch", config_text="obedient", run_name=name)
            eventually(lambda name=name: state(root, name) == "running")
        refused = refusal(other, "launch", config_text="obedient", run_name="one")
        assert (refused.code, "another root" in refused.message) == ("session_live", True)
        create_run(demo, {"config_text": "obedient"}, "one")
        for params in ({"run": "one"}, {"run": "one", "patience_s": 0}):  # the process in the session is not its own
            assert ask(other, "kill", **params)["state"] == "killed"
            StatusWriter(demo / "training_runs" / "one").close()
            (demo / "training_runs" / "one" / "status.json").unlink()
        assert refusal(other, "kill", session="one").code == "not_ours"
        sessions = {row["name"]: row["run"] for row in ask(other, "list_sessions")["sessions"]}
        assert sessions == {"one": "one (another root)", "two": "two (another root)"}
        assert [state(root, name) for name in ("one", "two")] == ["running", "running"]
        sessions = {row["name"]: row["run"] for row in ask(same, "list_sessions")["sessions"]}
        assert sessions == {"one": "one", "two": "two"}
        assert ask(same, "kill", run="one")["state"] == "killed"
        ask(real, "kill", run="two")


def finished_run(root: Path, name: str) -> None:
    run = create_run(root, {"config_text": "obedient"}, name)
    writer = StatusWriter(run.path)
    writer.update(state="stopped")
    writer.close()
    for step in (1, 2):
        folder = run.training_state / f"step_{step}"
        folder.mkdir()
        (folder / "model").write_bytes(b"weights")
        write_manifest(folder, step=step)
    (run.training_state / "step_latest").symlink_to("step_2")
    (run.training_state / "step_3").mkdir()


def test_resume_and_evaluate(link: tuple[BoxClient, Recorder], root: Path, tmux_socket: str) -> None:
    client, _ = link
    finished_run(root, "r1")
    shown = ask(client, "show_run", run="r1")
    assert [(c["step"], c["complete"], c["aliases"]) for c in shown["checkpoints"]] == [
        (1, True, []),
        (2, True, ["latest"]),
        (3, False, []),
    ]
    assert "MANIFEST" in refusal(client, "resume", run="r1", from_step=3).message
    assert "step_9" in refusal(client, "resume", run="r1", from_step=9).message
    assert "did you mean r1" in refusal(client, "resume", run="r2").message
    dry = ask(client, "resume", run="r1", from_step=1, additional_steps=4, dry_run=True)
    assert dry["argv"][1:-2] == ["resume", "--training-run", "r1", "--from-step", "1", "--additional-steps", "4"]
    dry = ask(client, "resume", run="r1", nproc=2, overrides=["run.seed=1", "eval.nproc=2"], dry_run=True)
    assert dry["argv"][6:-2] == ["--nproc", "2", "--set", "run.seed=1", "--set", "eval.nproc=2"]
    first = ask(client, "resume", run="r1", from_step="latest")
    assert (first["session"], first["step"]) == ("r1", 2)
    eventually(lambda: state(root, "r1") == "running")
    ask(client, "stop", run="r1")
    eventually(lambda: state(root, "r1") == "stopped")
    eventually(lambda: all(s["dead"] for s in ask(client, "list_sessions")["sessions"]))
    ask(client, "resume", run="r1")  # replaces the dead session of the first one
    eventually(lambda: state(root, "r1") == "running")

    wanted = {"run": "r1", "steps": [1, 2], "eval_dataset": "gsm8k", "subset_frac": 0.5, "batch_size": 32}
    wanted |= {"num_samples": 4, "temperature": 0.6}
    result = ask(client, "evaluate", **wanted)
    assert result["session"] == "eval_r1"
    assert result["argv"][1:] == [
        *("eval", "--training-run", "r1", "--steps", "1,2", "--eval-dataset", "gsm8k"),
        *("--subset-frac", "0.5", "--temperature", "0.6", "--batch-size", "32", "--num-samples", "4"),
        *("--root", str(root)),
    ]
    assert refusal(client, "evaluate", **wanted).code == "session_live"
    # a name that is a pattern for another session must not end that session
    subprocess.run(["tmux", "-L", tmux_socket, "kill-session", "-t", "=eval_r1"], check=True)
    ask(client, "evaluate", **wanted)
    ask(client, "kill", run="r1")
    assert {s["name"]: s["dead"] for s in ask(client, "list_sessions")["sessions"]}["eval_r1"] is False
    assert ask(client, "kill", session="eval_r1") == {"session": "eval_r1", "left": [], "forced": False}
    assert refusal(client, "kill", session="eval_r1").code == "not_running"


def test_names_that_could_be_commands_are_refused(link: tuple[BoxClient, Recorder], root: Path) -> None:
    client, _ = link
    for name in ("$(touch x)", "a;b", "a b", "-rf", "../x", "a\nb", "é", "'", "=x", "x" * 200):
        assert refusal(client, "launch", config_text="obedient", run_name=name).code in ("bad_name", "bad_request")
        for op, params in (("show_run", {"run": name}), ("stop", {"run": name}), ("kill", {"run": name})):
            assert refusal(client, op, **params).code == "no_run"
        assert refusal(client, "capture_pane", session=name).code == "no_session"
    assert not (root / "training_runs").exists() or not list((root / "training_runs").glob("*"))


def test_a_hostile_root_is_passed_verbatim(box: Box, tmp_path: Path) -> None:
    root = tmp_path / "a b;$(touch pwned)'#{pid}\"é;"
    root.mkdir()
    with connected(dataclasses.replace(box, root=str(root))) as (client, _):
        run = ask(client, "launch", config_text="obedient")["run"]
        eventually(lambda: state(root, run) == "running")
        assert refusal(client, "launch", config_text="x", run_name=run).code in ("name_taken", "session_live")
        ask(client, "kill", run=run)
    assert not list(tmp_path.rglob("pwned"))


def test_foreign_sessions_of_any_name_are_listed(
    link: tuple[BoxClient, Recorder], tmux_socket: str, root: Path
) -> None:
    client, _ = link
    names = ["my work é", "$(x)", "r*", "#{pid}", "a;b;"]
    for name in names:
        escaped = name.replace("#", "##")
        escaped = escaped[:-1] + "\\;" if escaped.endswith(";") else escaped
        subprocess.run(["tmux", "-u", "-L", tmux_socket, "new-session", "-d", "-s", escaped, "sleep 600"], check=True)
    listed = {row["name"]: row for row in ask(client, "list_sessions")["sessions"]}
    assert set(names) == set(listed)
    assert not any(row["dead"] or row["run"] for row in listed.values())
    for name in names:
        assert ask(client, "capture_pane", session=name)["text"] == ""
        assert refusal(client, "kill", session=name).code == "not_ours"
    run = ask(client, "launch", config_text="obedient", run_name="r1")["run"]
    assert run == "r1"  # 'r*' is another session, not a pattern


def test_a_killed_tmux_server(link: tuple[BoxClient, Recorder], tmux_socket: str, root: Path) -> None:
    client, _ = link
    run = ask(client, "launch", config_text="obedient")["run"]
    eventually(lambda: state(root, run) == "running")
    subprocess.run(["tmux", "-L", tmux_socket, "kill-server"], check=True)
    assert ask(client, "list_sessions")["sessions"] == []
    assert refusal(client, "capture_pane", session=run).code == "no_session"
    eventually(lambda: state(root, run) == "lost")
    other = ask(client, "launch", config_text="obedient", run_name="other")
    eventually(lambda: state(root, "other") == "running")
    ask(client, "kill", run=other["run"])


def test_a_tmux_server_without_sessions(link: tuple[BoxClient, Recorder], tmux_socket: str) -> None:
    """As one is for a moment before it ends."""
    tmux = ["tmux", "-L", tmux_socket, "-f", "/dev/null"]
    subprocess.run([*tmux, "start-server", ";", "set-option", "-g", "exit-empty", "off"], check=True)
    assert ask(link[0], "list_sessions")["sessions"] == []


def test_a_box_without_tmux(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with connected(box) as (client, _):
        for op, params in (("launch", {"config_text": "x"}), ("list_sessions", {}), ("capture_pane", {"session": "x"})):
            error = refusal(client, op, **params)
            assert (error.code, "apt-get install" in error.hint) == ("no_tmux", True)
        checks = {check["name"]: check for check in ask(client, "doctor")["checks"]}
        assert not checks["tmux"]["ok"]
        assert ask(client, "list_runs")["runs"] == []
    assert not (root / "training_runs").exists()


def test_configs_of_the_checkout(box: Box, tmp_path: Path) -> None:
    folder = tmp_path / "repo/config"
    folder.mkdir(parents=True)
    for name in ("demo.yaml", "boxes.example.yaml", "keymap.yaml", "alarms.example.yaml", "notes.txt"):
        (folder / name).write_text("a: 1\n")
    (folder / "ladder").mkdir()
    (folder / "ladder/a.yaml").write_text("b: 1\n")
    with connected(dataclasses.replace(box, repo=str(folder.parent))) as (client, _):
        names = [config["name"] for config in ask(client, "list_configs")["configs"]]
        assert names == ["demo.yaml", "ladder/a.yaml"]
        assert [ask(client, "read_config", name=name)["text"] for name in names] == ["a: 1\n", "b: 1\n"]
        for name in ("../secret", "nothing.yaml", "..", "/etc/passwd", "ladder", "ladder/../../x", "/passwd"):
            assert refusal(client, "read_config", name=name).code == "no_config"
    with connected(box) as (client, _):
        assert refusal(client, "list_configs").code == "no_repo"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A root that is not writable: a read-only mount for the superuser, permissions for others."""
    folder = tmp_path / "read_only"
    folder.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)], check=True)
        yield folder
        subprocess.run(["umount", str(folder)], check=True)
    else:
        folder.chmod(0o555)
        yield folder


def test_a_read_only_root(box: Box, read_only: Path) -> None:
    with connected(dataclasses.replace(box, root=str(read_only))) as (client, _):
        error = refusal(client, "launch", config_text="x")
        assert error.code == "bad_root"
        assert str(read_only) in error.message
        check = next(check for check in ask(client, "doctor")["checks"] if check["name"] == "root")
        assert not check["ok"]
        assert check["hint"]
        assert ask(client, "list_runs")["runs"] == []


def test_invalid_parameters_are_refused(link: tuple[BoxClient, Recorder]) -> None:
    client, _ = link
    for op, params in (
        ("launch", {}),
        ("launch", {"config_text": 3}),
        ("launch", {"config_text": "x", "nproc": 0}),
        ("launch", {"config_text": "x", "overrides": "a=1"}),
        ("evaluate", {}),
        ("show_run", {}),
        ("stop", {"run": None}),
        ("evaluate", {"ckpt_path": "x", "subset_frac": 2}),
        ("evaluate", {"ckpt_path": "x", "temperature": -1}),
    ):
        assert refusal(client, op, **params).code == "bad_request", (op, params)
