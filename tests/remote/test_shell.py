"""The shell's commands over a real agent: of this machine, and over a real sshd."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_tui import cli
from remote.boxes import Box, add_box, default_path
from tests.support.agent import agents_here, eventually
from tests.support.histories import make_run
from tests.support.known_hosts import box_of, trust
from tests.support.sshd import Sshd

CONFIG = "run: {total_steps: 100}\ntask: {name: addition}\n"

__all__ = ["agents_here"]
pytestmark = pytest.mark.usefixtures("agents_here")


class Shell:
    """``grpo-tui`` in this process, with a boxes.yaml of its own."""

    def __init__(self, folder: Path, box: Box, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.name, self._capsys = folder, box.name, capsys
        self.boxes = add_box(folder / f"{box.name}.yaml", box)
        self.config = folder / "my.yaml"
        self.config.write_text(CONFIG)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        code = cli.main([*words, "--box", self.name, "--boxes", str(self.boxes)])
        done = self._capsys.readouterr()
        return code, done.out, done.err

    def json(self, *words: str, code: int = 0) -> Any:
        ended, out, errors = self(*words, "--json")
        assert ended == code, (out, errors)
        return json.loads(out)


@pytest.fixture
def shell(box: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LOCALFS_ROOT", raising=False)
    return Shell(tmp_path, box, capsys)


def test_a_run_from_launch_to_resume(shell: Shell, root: Path) -> None:
    planned = shell.json("launch", str(shell.config), "--run-name", "one", "--dry-run", "--nproc", "2")
    assert (planned["started"], planned["argv"][-2:]) == (False, ["--root", str(root)])
    assert not (root / "training_runs").exists()
    launched = shell.json("launch", str(shell.config), "--run-name", "one", "--key", "k", "--set", "run.save_every=7")
    assert (launched["run"], launched["started"], launched["idempotency_key"]) == ("one", True, "k")
    record = json.loads((root / "training_runs" / "one" / "launch.json").read_text())
    assert (record["config_text"], record["overrides"]) == (CONFIG, ["run.save_every=7"])
    assert record["config_name"] == "config/my.yaml"

    code, out, _ = shell("launch", str(shell.config), "--run-name", "one", "--key", "k")
    assert (code, out) == (0, "local: one launched before, by a command with this key\n")
    eventually(lambda: shell.json("runs")[0]["step"] > 1)
    assert shell.json("show", "one")["summary"]["state"] == "running"
    assert [row["name"] for row in shell.json("sessions")] == ["one"]
    assert "fake engine: supervise one" in shell.json("capture", "one")["text"]
    assert shell.json("attach", "one")["argv"][-1] == "=one"
    assert "one  running" in shell("runs")[1].replace("   ", "  ")
    logged = shell.json("tail", "one", "train_log", "-n", "2")["lines"]
    assert [json.loads(line)["reward"] for line in logged] == [0.5, 0.5]

    assert shell.json("resume", "one", code=1)["error"]["code"] == "run_is_live"
    assert shell.json("stop", "one", "--readonly", code=1)["error"]["code"] == "read_only"
    assert shell("stop", "one")[:2] == (0, "local: one: stop requested: it stops after its current step and saves\n")
    eventually(lambda: shell.json("show", "one")["summary"]["state"] == "stopped")
    assert shell.json("stop", "one", code=1)["error"]["code"] == "not_running"


def test_a_run_and_an_evaluation_are_killed(shell: Shell) -> None:
    for name in ("one", "two"):
        assert shell("launch", str(shell.config), "--run-name", name)[0] == 0
    words = ("--steps", "latest", "--num-problems", "5", "--temperature", "0.5", "--timeout", "900")
    assert shell("eval", "two", *words)[0] == 0
    argv = next(row for row in shell.json("sessions") if row["name"] == "eval_two")
    assert argv["dead"] is False
    eventually(lambda: "--timeout 900" in shell.json("capture", "eval_two")["text"].replace("\n", ""))
    assert shell("kill", "one")[0] == 2, "it asks, and there is no terminal"
    assert shell.json("kill", "one", "--yes")["left"] == []
    assert shell.json("kill", "--session", "eval_two", "--yes")["session"] == "eval_two"
    assert {row["run"]: row["state"] for row in shell.json("runs")} == {"one": "killed", "two": "running"}
    assert shell("kill", "two", "--yes")[0] == 0


def test_a_followed_log_until_ctrl_c(shell: Shell) -> None:
    assert shell("launch", str(shell.config), "--run-name", "one")[0] == 0
    eventually(lambda: shell.json("runs")[0]["step"] > 0)
    words = ["tail", "one", "train_log.jsonl", "-f", "-n", "1", "--box", "local", "--boxes", str(shell.boxes)]
    command = [sys.executable, "-m", "grpo_tui.cli", *words]

    def as_in_a_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what it runs in the background

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=as_in_a_terminal) as process:
        assert process.stdout is not None
        steps = [json.loads(process.stdout.readline())["step"] for _ in range(5)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert steps == list(range(steps[0], steps[0] + 5)), "each line once"
    assert process.returncode == 130
    assert shell("kill", "one", "--yes")[0] == 0


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("""echo '{"error": {"code": "bad_task", "message": "task.name: unknown task"}}'; exit 2""", 2, "unknown task"),
        ("""echo '{"notes": ["auto -> x", "y is made first"]}'""", 0, "grpo-tui: auto -> x\ngrpo-tui: y is made first"),
        ("echo 'No such command' >&2; exit 2", 0, "the config was not checked on the box: box engine"),
        ("echo 'ZeroDivisionError: x' >&2; exit 1", 0, "grpo-train check-launch: ZeroDivisionError: x"),
    ],
)
def test_the_engine_checks_a_launch(
    box: Box, shell: Shell, root: Path, tmp_path: Path, answer: str, code: int, said: str
) -> None:
    """A dry run says what the launch would, and what is refused leaves its name free."""
    engine, asked = tmp_path / "engine", tmp_path / "asked"
    engine.write_text(
        f'#!/bin/sh\n[ "$1" = check-launch ] || exec {box.engine[0]} "$@"\n'
        f'[ "$2 $3" = "--json --root" ] && cat > {asked}\n{answer}\n'
    )
    engine.chmod(0o755)
    shell.boxes = add_box(tmp_path / "checked.yaml", dataclasses.replace(box, engine=[str(engine)]))
    words = ["launch", str(shell.config), "--run-name", "one", "--set", "run.seed=7", "--nproc", "2"]
    for more in (["--dry-run"], []):
        ended, _, errors = shell(*words, *more)
        assert (ended, said in errors) == (code, True), errors
        assert json.loads(asked.read_text()) == {
            "config_text": CONFIG, "config_name": "config/my.yaml", "overrides": ["run.seed=7"], "nproc": 2, "ckpt": "",
            "job": None, "estimate": bool(more),
        }  # fmt: skip
        assert (root / "training_runs" / "one").exists() == (not more and code == 0)
    if code == 0:
        assert "already exists" in shell(*words, "--dry-run")[2]
        assert shell("kill", "one", "--yes")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "none"], 2, "no run named 'none'"),
        (["capture", "none"], 2, "no tmux session 'none'"),
        (["attach", "none"], 2, "needs a terminal"),
        (["launch", "nothing"], 2, "nothing: no such file"),
        (["launch", "FILE", "--set", "run.total=1"], 2, "run.total"),
        (["eval"], 2, "either RUN or --ckpt-path"),
        (["kill", "--yes"], 2, "either RUN or --session"),
        (["gpu", "--box", "nobox"], 2, "no box named 'nobox'"),
    ],
)
def test_usage_errors(shell: Shell, words: list[str], code: int, message: str) -> None:
    words = [str(shell.config) if word == "FILE" else word for word in words]
    box = [] if "--box" in words else ["--box", "local"]
    ended = cli.main([*words, *box, "--boxes", str(shell.boxes)])
    assert (ended, message in shell._capsys.readouterr().err) == (code, True)


def test_boxes_at_a_glance(shell: Shell, root: Path) -> None:
    """Each is asked on its own: one that refuses and one that never answers cost the others nothing."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        for name, port in (("hole", hole.getsockname()[1]), ("refused", 1)):
            add_box(shell.boxes, Box(name, host="127.0.0.1", port=port, transport="paramiko", price_per_hour=2.5))

        def glances() -> list[dict[str, Any]]:
            assert cli.main(["boxes", "--json", "--boxes", str(shell.boxes)]) == 1
            return list(json.loads(shell._capsys.readouterr().out))

        assert shell("launch", str(shell.config), "--run-name", "one")[0] == 0
        local, silent, refused = glances()
        assert (local["problem"], local["live"], local["gpus"], local["idle_s"]) == ("", ["one"], 0, None)
        assert "no connection within 15 s" in silent["problem"]
        assert (refused["live"], refused["gpus"], refused["price_per_hour"]) == ([], None, 2.5)
    assert shell("kill", "one", "--yes")[0] == 0
    assert cli.main(["boxes", "--boxes", str(shell.boxes)]) == 1
    out = shell._capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["local", "this", "machine", "none", "no", "GPU"] in [line[:6] for line in lines]
    assert [line[2:] for line in lines if line[0] in ("hole", "refused")] == [["not", "reached", "$2.50"]] * 2
    assert "\nrefused: 127.0.0.1:1" in out


def test_what_a_driver_says_is_the_same_everywhere(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An nvidia-smi whose rows a test chooses."""
    program = tmp_path / "programs" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu=*) . {tmp_path}/said;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    said = tmp_path / "said"

    def glance(code: int) -> tuple[dict[str, Any], dict[str, Any]]:
        assert cli.main(["boxes", "--json", "--boxes", str(shell.boxes)]) == code
        (row,) = json.loads(shell._capsys.readouterr().out)
        checks = json.loads(shell("doctor", "--json")[1])["checks"]
        return row, next(check for check in checks if check["name"] == "gpus")

    busy = "echo 0, GPU-a, NVIDIA H100, 570, 81559, 70000, 98, 612.0, 61"
    said.write_text(f"{busy}\necho 1, GPU-b, NVIDIA H100, 570, '[GPU is lost],[GPU is lost],[N/A],[N/A],[N/A]'\n")
    row, check = glance(1)
    assert (row["gpus"], row["gpus_free"], row["gpu_problem"]) == (2, 0, "GPU 1: GPU is lost")
    assert (check["level"], "GPU 1 (NVIDIA H100): GPU is lost" in check["detail"]) == ("error", True)
    assert [gpu["free"] for gpu in shell.json("gpu")["gpus"]] == [False, False]
    assert "in use, process not listed" in shell("gpu")[1]
    said.write_text("echo no driver; exit 9\n")
    row, check = glance(1)
    assert (row["gpus"], row["gpus_free"]) == (None, None)
    assert "nvidia-smi failed: no driver" in row["gpu_problem"]
    assert "nvidia-smi failed: no driver" in check["detail"]
    assert shell.json("gpu", code=1)["error"]["message"].startswith("nvidia-smi failed: no driver")


def test_what_w_and_b_lacks_is_shown(shell: Shell, root: Path) -> None:
    run = make_run(root, "one")
    run.log_event("tracking", service="wandb", mode="online", url="https://wandb.ai/me/x")
    run.log_event("tracking_failed", service="wandb", mode="offline", error="it was killed")
    assert (
        "W&B: it was killed; send it later, on the box: grpo-train track --training-run one --mode offline"
        in (shell("show", "one")[1])
    )
    assert [event.get("url") for event in shell.json("show", "one")["events"]][-2:] == ["https://wandb.ai/me/x", None]


def test_a_box_without_a_gpu(shell: Shell) -> None:
    assert shell.json("gpu")["gpus"] == []


def detail_of(found: dict[str, Any], check: str) -> str:
    return next(str(each["detail"]) for each in found["checks"] if each["name"] == check)


def test_doctor_has_three_exit_codes(shell: Shell, box: Box, root: Path, tmp_path: Path) -> None:
    ready = shell.json("doctor")
    assert (ready["level"], {check["level"] for check in ready["checks"]}) == ("ok", {"ok"})
    assert {"transport", "algorithms", "machine", "clock", "roots", "owners", "secrets", "device"} <= {
        check["name"] for check in ready["checks"]
    }
    assert detail_of(ready, "machine") == "this machine"
    (root / ".env").write_text("WANDB_API_KEY=x\n")
    (root / ".env").chmod(0o644)
    code, out, _ = shell("doctor")
    assert (code, f"▲ secrets        other accounts can read {root}/.env" in out) == (1, True)
    fix = next(line for line in out.splitlines() if "chmod" in line).partition("on the box: ")[2]
    subprocess.run(fix, shell=True, check=True)
    assert shell("doctor")[0] == 0, "the command does what it says"

    shell.boxes.unlink()
    add_box(shell.boxes, dataclasses.replace(box, engine=["/no/such/engine"]))
    broken = shell.json("doctor", code=2)
    assert [check["name"] for check in broken["checks"] if check["level"] == "error"] == ["engine"]

    shell.boxes.unlink()
    shell.name = "bare"
    add_box(shell.boxes, dataclasses.replace(box, name="bare", engine=[], activate="true"))
    assert "in a checkout of grpo-tui: grpo-tui up --box bare\n" in shell("doctor")[1]


def test_doctor_of_a_box_that_is_not_reached(shell: Shell, box: Box) -> None:
    shell.boxes.unlink()
    add_box(shell.boxes, Box("local", host="127.0.0.1", port=1, transport="paramiko"))
    (check,) = shell.json("doctor", code=2)["checks"]
    assert (check["name"], check["level"], check["fix"]) == ("link", "error", "grpo-tui --box local")
    assert shell.json("runs", code=1)["error"]["code"] == "unreachable"


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_over_ssh(
    ssh_box: Box, transport: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host key is accepted by a person; the algorithms of the connection are named."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("grpo_tui.shell.connection.accept_host_key", lambda question: True)
    shell = Shell(tmp_path, dataclasses.replace(ssh_box, transport=transport), capsys)
    checks = {check["name"]: check for check in shell.json("doctor", code=0)["checks"]}
    assert transport in checks["transport"]["detail"]
    assert "host_key ssh-ed25519" in checks["algorithms"]["detail"]
    assert "kex " in checks["algorithms"]["detail"]
    assert checks["machine"]["detail"] == "noted now, to be compared the next time"
    if transport == "paramiko":
        assert detail_of(shell.json("doctor"), "machine") == "the same as the last time"
    launched = shell.json("launch", str(shell.config), "--run-name", "far")
    assert launched["started"] is True
    assert shell.json("kill", "far", "--yes")["left"] == []


@pytest.mark.parametrize("words", [["runs"], ["doctor"], ["boxes"], ["get", "run"]], ids=lambda words: words[0])
def test_a_changed_host_key_is_the_answer(
    own_sshd: Sshd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    """Of every command: the file, the line and both keys."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    known = default_path().with_name("known_hosts")
    known.parent.mkdir(parents=True)
    trust(known, own_sshd, "h200")
    own_sshd.new_host_key()
    file = add_box(tmp_path / "boxes.yaml", box_of(own_sshd, transport="openssh"))
    assert cli.main([*words, *([] if words == ["boxes"] else ["--box", "h200"]), "--boxes", str(file)]) in (1, 2)
    done = capsys.readouterr()
    assert (f"delete line 1 of {known}" in done.out + done.err, "comparing again" in done.out) == (True, False), done


def test_no_command_loads_the_app_or_torch() -> None:
    code = "import sys; from grpo_tui.shell import boxes, look, change, doctor; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert not loaded & {"torch", "textual", "paramiko", "boto3"}
