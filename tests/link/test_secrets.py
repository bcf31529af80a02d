"""Planted secrets and one session over a real sshd: no one else sees them. And requests with one are refused.

The session: find the box by the API key of its provider, connect with a key whose passphrase is typed and a code that
PAM asks for, doctor, a refused config and a refused override in the launch form, launch, attach, stop, evaluate, quit;
then, with the key in an SSH agent, replace the box's ``.env`` by the laptop's, and crash the app. A secret may be where
the user put it, in the environment of the processes that the user started with it, and, a proxy's password, in the
environment of the user's own jobs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from remote.agent.box import PASSED_ON
from remote.boxes import load_boxes
from remote.transports.paramiko import paramiko_attach_argv
from tests.remote.conftest import FAKE_ENGINE
from tests.run_dir.helpers import make_checkpoint
from tests.support.agent import RawAgent, eventually
from tests.support.canaries import EncryptedKey, ProcessWatch, app_command, canary, ssh_agent, write_private
from tests.support.engine import command_here
from tests.support.lambda_api import LambdaApi, instance
from tests.support.ssh_box import SshBox, answer_question, confirm, connect, ssh_box, tab_to
from tests.support.ssh_lab import TWO_FACTORS, pam_secret
from tests.support.terminal import Terminal

GOOD, BAD = "a_good.yaml", "b_bad.yaml"
ROOT = os.geteuid() == 0
"""PAM asks for a second factor: it needs a mount namespace."""
HF = "hf_" + "q" * 34


@dataclass
class Evidence:
    """What the session left behind."""

    planted: dict[str, str]
    watch: ProcessWatch
    box: SshBox
    folder: Path
    protocol: Path
    tmux: dict[str, str] = field(default_factory=dict)
    """tmux command to its output."""
    screens: dict[str, str] = field(default_factory=dict)
    """Refusals, the crash report and the whole session, as the user saw them."""

    @property
    def run(self) -> RunDir:
        return self.box.run()

    def found_in(self, text: str | bytes, *allowed: str) -> list[str]:
        """The canaries in a text."""
        data = text if isinstance(text, bytes) else text.encode()
        return [name for name, value in self.planted.items() if value.encode() in data and name not in allowed]

    def found_below(self, folder: Path, *allowed: Path) -> dict[str, list[str]]:
        """File to the canaries in it or in its name."""
        files = (file for file in folder.rglob("*") if file.is_file() and file not in allowed)
        found = {str(file): self.found_in(file.read_bytes() + str(file).encode()) for file in files}
        assert found, folder
        return {file: names for file, names in found.items() if names}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    folder = tmp_path_factory.mktemp("secrets")
    planted = {
        "laptop environment": canary("hf_"),
        "laptop .netrc": canary(),
        "laptop git credential": canary("ghp_", 36),
        "laptop proxy password": canary(),
        "key passphrase": canary(),
        "code of a second factor": canary(),
        "box environment": canary("hf_"),
        "box HF token file": canary("hf_"),
        "box .netrc of W&B": canary("wandb_v1_"),
        "box AWS credentials": canary("", 40),
        "box proxy password": canary(),
        "config": canary("hf_"),
        "override": canary(),
        "laptop .env": canary("hf_"),
        "box .env": canary("hf_"),
    }
    root = folder / "localfs"
    root.mkdir()
    key = EncryptedKey(folder, planted["key passphrase"])
    proxy = "http://me:{}@127.0.0.1:9"
    login = {"HF_TOKEN": planted["box environment"], "HTTPS_PROXY": proxy.format(planted["box proxy password"])}
    settings: dict[str, Any] = {"engine": [str(FAKE_ENGINE)], "key": str(key.path), "host": ""}
    server = {"extra": TWO_FACTORS, "files": pam_secret(folder, planted["code of a second factor"])} if ROOT else {}
    code = [("Password:", planted["code of a second factor"])] if ROOT else []
    with (
        ssh_agent(folder) as agent,
        LambdaApi(folder) as api,
        ssh_box(folder, root, {**settings, **_provider(api, planted)}, login, **server) as box,
        ProcessWatch(planted) as watch,
    ):
        laptop, home = folder / "laptop", folder / "sshd" / "home"
        with (folder / "sshd" / "authorized_keys").open("a") as authorized:
            authorized.write(Path(f"{key.path}.pub").read_text())
        write_private(laptop / ".netrc", f"machine example.com login me password {planted['laptop .netrc']}\n")
        write_private(laptop / ".git-credentials", f"https://me:{planted['laptop git credential']}@github.com\n")
        write_private(home / ".grpo" / ".env", f"HF_TOKEN={planted['box .env']}\n")
        write_private(home / ".cache/huggingface/token", planted["box HF token file"])
        write_private(home / ".netrc", f"machine api.wandb.ai login user password {planted['box .netrc of W&B']}\n")
        aws = f"[default]\naws_secret_access_key = {planted['box AWS credentials']}\n"
        write_private(home / ".aws/credentials", aws)
        configs = folder / "configs"
        write_private(configs / GOOD, "run: {total_steps: 100}\ntask: {name: addition}\n")
        write_private(configs / BAD, f"run: {{total_steps: 100}}\ntask:\n  path: {planted['config']}\n")
        variables = {
            **box.environment,
            "SSH_AUTH_SOCK": agent,
            "HF_TOKEN": planted["laptop environment"],
            "HTTPS_PROXY": proxy.format(planted["laptop proxy password"]),
            "NO_PROXY": "localhost",
            "SSL_CERT_FILE": str(api.certificate),
        }
        protocol = folder / "protocol"
        words = [str(app_command(folder, variables, protocol)), "--boxes", str(box.boxes_file), "--box", "h200"]
        words += ["--config-dir", str(configs)]
        evidence = Evidence(planted, watch, box, folder, protocol)
        with Terminal(words, box.environment) as screen:
            connect(screen, ("Enter passphrase for key", planted["key passphrase"]), *code)
            screen.wait_for("● ", " ms", timeout=20)
            _launch(screen, evidence)
            _use(screen, evidence)
            evidence.tmux = _ask_tmux(box)
            screen.press("q")
            screen.wait_for("Pane is dead")
            evidence.screens["session"] = screen.history()
        key.add_to(agent)
        own = write_private(laptop / "own.env", f"HF_TOKEN={planted['laptop .env']}\n")
        put = [str(app_command(folder, variables, folder / "put"))]
        put += ["env", "put", str(own), "--boxes", str(box.boxes_file), "--box", "h200"]
        with Terminal(put, box.environment) as screen:
            for question, answer in code:
                screen.wait_for(question, timeout=30)
                screen.paste(answer)
                screen.press("Enter")
            screen.wait_for("replaced: HF_TOKEN", timeout=30)
            evidence.screens["put"] = screen.history()
        app_command(folder, variables, protocol)
        with Terminal(words, box.environment) as screen:
            for question, answer in code:
                answer_question(screen, question, answer)
            screen.wait_for("grpo-tui │ h200", "stopped", " ms", timeout=30)  # the list may be a kept one
            _crash(screen, evidence)
        yield evidence


def _provider(api: LambdaApi, planted: dict[str, str]) -> dict[str, Any]:
    planted["provider key"] = api.key
    api.instances = [instance("h200", "127.0.0.1")]
    return {"provider": {"kind": "lambda", "key_file": str(api.key_file), "url": api.url}}


def _launch(screen: Terminal, evidence: Evidence) -> None:
    """Two refusals in the launch form, then a launch."""
    screen.press("n")
    screen.wait_for("launch a run on h200", "✔", "supervise", timeout=30)
    screen.press("Tab")
    screen.wait_for_focus("config")
    _choose(screen, "Down")
    evidence.screens["config"] = screen.wait_for("holds a Hugging Face token", timeout=20)
    _choose(screen, "Up")
    screen.wait_for("✔", "supervise", timeout=20)
    tab_to(screen, "overrides")
    screen.paste(f"task.password={evidence.planted['override']}")
    screen.wait_for("'task.password' holds a secret", timeout=20)
    screen.press("C-u")
    screen.wait_for("✔", "supervise", timeout=20)
    screen.type("run.seed=3")
    screen.wait_for("✔", "run.seed=3", "--set", timeout=20)
    screen.press("Enter")
    screen.wait_for_focus("Launch")
    confirm(screen)
    screen.wait_for("running", "reward", timeout=30)


def _choose(screen: Terminal, key: str) -> None:
    """Choose another config in the list that has the focus."""
    screen.press("Enter")
    screen.wait_for(GOOD, BAD)  # both: the list is open
    screen.wait_for_focus(".yaml")
    screen.press(key, "Enter")
    screen.wait_for_focus("config")


def _use(screen: Terminal, evidence: Evidence) -> None:
    """Attach, stop, evaluate."""
    run = evidence.run
    screen.press("a")
    screen.wait_for("To return", "ssh -t", timeout=20)
    screen.press("Enter")
    screen.wait_gone("To return")
    screen.wait_for("fake engine:", "supervise", timeout=20)
    eventually(lambda: any("attach-session" in command for command in tuple(evidence.watch.commands)))
    screen.detach(run.name)
    screen.wait_for("grpo-tui │ h200", timeout=20)
    screen.press("s")
    screen.wait_for("resumes it later")
    screen.press("Enter")
    screen.wait_for("stopped", timeout=30)
    make_checkpoint(run, 1)
    screen.wait_for("step_1", timeout=30)
    screen.press("e")
    screen.wait_for("exact command", "eval", "--steps", timeout=20)
    confirm(screen)
    eventually(lambda: "eval_" in evidence.box.tmux("list-sessions"), 20)
    eventually(lambda: "fake engine:" in evidence.box.tmux("capture-pane", "-p", "-t", f"eval_{run.name}:"), 20)


def _crash(screen: Terminal, evidence: Evidence) -> None:
    """Type a secret into a form, and meet a bug there."""
    screen.press("n")
    screen.wait_for("launch a run on h200", "✔", timeout=30)
    screen.press("Tab")
    screen.wait_for_focus("config")
    tab_to(screen, "overrides")
    screen.paste(f"run.token={evidence.planted['override']}CRASH")
    screen.wait_for("planted bug", "Pane is dead", timeout=20)
    evidence.screens["crash"] = screen.history()


def _ask_tmux(box: SshBox) -> dict[str, str]:
    """Everything that tmux shows to whoever may ask it."""
    sessions = box.tmux("list-sessions", "-F", "#{session_name}").split()
    questions = [["show-options", "-s"], ["show-options", "-g"], ["show-options", "-g", "-w"], ["show-hooks", "-g"]]
    questions += [["show-environment", "-g"], ["show-messages"], ["list-buffers"]]
    questions += [["list-panes", "-a", "-F", "#{pane_start_command} #{pane_title} #{pane_current_command}"]]
    for name in sessions:
        for question in ("show-options", "show-environment", "capture-pane -p -S -"):
            questions.append([*question.split(), "-t", f"={name}:"])
    return {" ".join(question): box.tmux(*question) for question in questions}


# ----------------------------------------------------------------------------------------------------- the session


def test_command_lines_show_no_secret(evidence: Evidence) -> None:
    assert not evidence.watch.shown
    commands = "\n".join(evidence.watch.commands)
    for seen in ("serve", "supervise", "eval --training-run", "attach-session", "new-session", "env put"):
        assert seen in commands, "the watch saw the session"


def test_environments_stay_with_their_processes(evidence: Evidence) -> None:
    """A login's tokens end with the agent: neither tmux nor a job inherits them; a job needs the proxy."""
    holders: dict[str, set[str]] = {}
    for name, command in evidence.watch.environments:
        holders.setdefault(name, set()).add(command)
    assert set(holders) <= {"laptop environment", "laptop proxy password", "box environment", "box proxy password"}
    assert any("supervise" in command for command in holders["box proxy password"])
    for command in holders["box environment"]:
        assert not any(word in command for word in ("supervise", "fake_engine", "new-session", "tmux -L")), command
    for command in holders["laptop environment"]:
        assert any(word in command for word in ("--box h200", "ssh", "tmux", "askpass")), command


def test_tmux_shows_no_secret(evidence: Evidence) -> None:
    answered = {question: output for question, output in evidence.tmux.items() if output}
    for seen in ("show-options -g", "show-environment -g", f"capture-pane -p -S - -t ={evidence.run.name}:"):
        assert seen in answered
    for question, output in evidence.tmux.items():
        # the environment of jobs is tmux's own, and only this account can open its socket
        allowed = ["box proxy password"] if question == "show-environment -g" else []
        assert not evidence.found_in(output, *allowed), question


def test_run_directories_hold_no_secret(evidence: Evidence) -> None:
    assert (evidence.run.path / "launch.json").exists()
    assert not evidence.found_below(evidence.box.root)


def test_the_link_carries_no_secret(evidence: Evidence) -> None:
    """Both directions, inside the encryption."""
    sent = evidence.protocol.read_bytes()
    for seen in (b'"launch"', b'"doctor"', b'"evaluate"', b'"stop"', b'"runs"'):
        assert seen in sent, "the recording holds the session"
    assert not evidence.found_in(sent)
    put = (evidence.folder / "put").read_bytes()
    assert put.count(evidence.planted["laptop .env"].encode()) == 1, "once, in the request that places it"
    assert evidence.found_in(put) == ["laptop .env"]


def test_files_of_the_laptop_hold_no_secret(evidence: Evidence) -> None:
    laptop = evidence.folder / "laptop"
    assert (laptop / "config" / "grpo-tui" / "known_hosts").exists()
    assert not evidence.found_below(laptop, laptop / ".netrc", laptop / ".git-credentials", laptop / "own.env")


def test_files_of_the_login_hold_no_secret(evidence: Evidence) -> None:
    home = evidence.folder / "sshd" / "home"
    placed = home / ".grpo" / ".env"
    assert evidence.found_in(placed.read_bytes()) == ["laptop .env"]
    assert placed.stat().st_mode & 0o777 == 0o600
    planted = (placed, home / ".netrc", home / ".cache/huggingface/token", home / ".aws/credentials")
    assert list(home.glob(".grpo/agent/*.pyz"))
    assert not evidence.found_below(home, *planted)


def test_the_crash_report_shows_no_secret(evidence: Evidence) -> None:
    report = evidence.screens["crash"]
    assert "with_a_bug" in report, "the report names the place"
    assert not evidence.found_in(report)


def test_answers_are_not_shown(evidence: Evidence) -> None:
    assert not evidence.found_in(evidence.screens["session"], "override")
    assert not evidence.found_in(evidence.screens["put"])


def test_the_refusal_of_a_config_names_its_line(evidence: Evidence) -> None:
    shown = evidence.screens["config"]
    for part in (BAD, "line 3", "task.path", "hf auth login"):
        assert part in shown
    assert "--set" not in shown, "no command is offered"


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("launch", {"config_text": f"run:\n  seed: 1\n# {HF}\n"}),
        ("launch", {"config_text": "run:\n  wandb_api_key: qqqq\n"}),
        ("launch", {"config_text": "run: {seed: 1}\n", "overrides": [f"task.path={HF}"]}),
        ("launch", {"config_text": "run: {seed: 1}\n", "overrides": [f"task.path={HF}"], "dry_run": True}),
        ("launch", {"config_text": "run: {seed: 1}\n", "ckpt": f"/models/{HF}"}),
        ("resume", {"run": "any", "overrides": ["task.password=qqqq"]}),
        ("evaluate", {"ckpt_path": "/models/x", "eval_path": f"https://me:{HF}@example.com/x.jsonl"}),
    ],
)
def test_the_agent_refuses_secrets(root: Path, tmux_socket: str, op: str, params: dict[str, Any]) -> None:
    """The laptop's form is not trusted: another program may send the request."""
    agent = RawAgent(root, engine=[str(FAKE_ENGINE)], tmux_socket=tmux_socket)
    response = agent.request(op, **params)
    agent.close()
    assert response["ok"] is False
    assert response["error"]["code"] == "secret"
    assert ".env" in response["error"]["message"]
    assert "qqqq" not in json.dumps(agent.frames)
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_the_agent_does_not_send_a_config_with_a_secret(root: Path, tmp_path: Path) -> None:
    write_private(tmp_path / "repo" / "config" / "bad.yaml", f"run:\n  seed: 1\ntask:\n  path: {HF}\n")
    agent = RawAgent(root, repo=str(tmp_path / "repo"))
    response = agent.request("read_config", name="bad.yaml")
    agent.close()
    assert response["error"]["code"] == "secret"
    assert "bad.yaml, line 4: 'task.path'" in response["error"]["message"]
    assert "qqqq" not in json.dumps(agent.frames)


def test_the_engine_refuses_secrets(root: Path, tmp_path: Path) -> None:
    bad = write_private(tmp_path / "bad.yaml", "run:\n  hf_token: qqqq\n")
    good = write_private(tmp_path / "good.yaml", "run: {total_steps: 1}\n")
    for words in (["--cfg", bad], ["--cfg", good, "--set", "task.password=qqqq"]):
        done = command_here("train", *words, root=root)
        assert done.returncode == 2
        assert "hf auth login" in done.stderr or ".env" in done.stderr
        assert "qqqq" not in done.stdout + done.stderr
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_the_attach_command_holds_no_secret(evidence: Evidence) -> None:
    (box,) = [box for box in load_boxes(evidence.box.boxes_file) if box.name == "h200"]
    assert not evidence.found_in(" ".join(paramiko_attach_argv(box, evidence.run.name)))


def test_only_listed_variables_reach_a_job() -> None:
    assert not [name for name in PASSED_ON if any(word in name for word in ("TOKEN", "KEY", "SECRET", "PASS"))]
