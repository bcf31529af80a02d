"""The keeper resumes what a reboot interrupted, in tmux, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import run_id_of
from grpo_train.supervisor import keeper_unit
from grpo_train.supervisor.keeper import ATTEMPTS, keep
from grpo_train.supervisor.workflow import workflow_file
from tests.support.canaries import canary, write_private
from tests.support.engine import (
    assert_same_run,
    command_here,
    environment,
    events,
    grpo_train,
    steps_logged,
    train_here,
    wait_for,
    write_config,
)

KEPT: dict[str, Any] = {"run__auto_resume": True, "run__total_steps": 4}


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for tmux's sockets; its server ends with the test."""
    folder = Path(f"/tmp/keeper-{os.getpid()}-{tmp_path.parent.name[-3:]}")  # a socket's path must be short
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TMUX_TMPDIR", str(folder))
    monkeypatch.delenv("TMUX", raising=False)
    yield folder
    subprocess.run(["tmux", "kill-server"], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def rebooted(run: RunDir, **fields: Any) -> None:
    """Make a run look as after a reboot of this machine."""
    for file in (run.status_file, run.launch_file):
        if file.exists():
            content = json.loads(file.read_text())
            file.write_text(json.dumps({**content, "boot_id": "an earlier boot", **fields}))


def interrupted(root: Path, name: str) -> RunDir:
    """A run that was killed after two of its steps, and rebooted."""
    run = train_here(root, write_config(root, f"{name}.yaml", **KEPT), name, "--until", "2")
    rebooted(run, state="running", stage="train")
    return run


def planted(root: Path, name: str, **status: Any) -> RunDir:
    """A run without processes that has a config and a status of an earlier boot."""
    from grpo_train.run_dir import StatusWriter, create_run
    from tests.support.engine import config_text

    run = create_run(root, {}, name)
    run.config_file.write_text(config_text(**KEPT))
    writer = StatusWriter(run.path)
    writer.update(state="running")
    writer.close()
    rebooted(run, **status)
    return run


def test_a_rebooted_run_is_resumed_in_its_session(
    root: Path, tmux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    secret = canary()
    write_private(tmp_path / ".grpo" / ".env", f"KEEPER_SECRET={secret}\n")
    run = interrupted(root, "night.1")
    assert run.observed_state().state == "lost"
    done = grpo_train("keeper", "--once", root=root, real=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("night.1: resumed (from step ")
    shown = subprocess.run(
        ["tmux", "list-panes", "-a", "-F", "#{session_name} #{@grpo_run} #{@grpo}"], capture_output=True, text=True
    )
    assert shown.stdout == "night_1 night.1 1\n"
    server = subprocess.run(["tmux", "show-environment", "-g"], capture_output=True, text=True, check=True).stdout
    assert ("HOME=" in server, secret in server) == (True, False), "jobs read .env themselves"
    assert [one.state for one in keep(root)] in ([], ["waiting"]), "its session is alive"
    wait_for(lambda: (run.read_status() or {}).get("state") == "finished", "the end of the run", timeout=300)
    assert steps_logged(run) == [1, 2, 3, 4]
    assert events(run).count("auto_resumed") == 1
    assert_same_run(run, train_here(root, write_config(root, **KEPT), "straight"), 4)
    assert command_here("keeper", "--once", root=root).stdout == ""
    rebooted(run, state="running")  # killed before its end was recorded
    assert command_here("keeper", "--once", root=root).stdout == "night.1: finished\n"
    assert (run.read_status() or {})["state"] == "finished"


def test_a_tmux_server_without_its_socket_is_not_replaced(root: Path, tmux: Path) -> None:
    subprocess.run(["tmux", "new-session", "-d", "cat"], check=True)
    pid = subprocess.check_output(["tmux", "display-message", "-p", "#{pid}"], text=True).strip()
    (tmux / f"tmux-{os.geteuid()}" / "default").unlink()
    planted(root, "early")
    try:
        (kept,) = keep(root)
    finally:
        os.kill(int(pid), signal.SIGTERM)
    assert (kept.run, kept.state) == ("early", "failed")
    assert f"run: kill -USR1 {pid}" in kept.reason


def test_a_run_that_never_saved_starts_again(root: Path, tmux: Path) -> None:
    run = planted(root, "early")
    assert [(one.run, one.state) for one in keep(root)] == [("early", "resumed")]
    wait_for(lambda: (run.read_status() or {}).get("state") == "finished", "the end of the run", timeout=300)
    assert steps_logged(run) == [1, 2, 3, 4]


def test_runs_that_are_none_of_its_business(root: Path, tmux: Path) -> None:
    planted(root, "elsewhere", host="another")
    planted(root, "ended", state="stopped")
    off = planted(root, "off")
    off.config_file.write_text(off.config_file.read_text().replace("auto_resume: true", "auto_resume: false"))
    asked = planted(root, "asked")
    asked.request_stop(by="test")
    killed = planted(root, "killed")
    killed.killed_file.touch()
    broken = planted(root, "broken")
    broken.config_file.write_text("run: [")
    assert keep(root) == []


def test_leftover_processes_are_waited_for(root: Path, tmux: Path) -> None:
    run = planted(root, "left")
    left = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, env={**environment(root), "GRPO_RUN_ID": run_id_of(run.path)}
    )
    try:
        (kept,) = keep(root)
    finally:
        left.communicate()
    assert (kept.state, str(left.pid) in kept.reason) == ("waiting", True)
    assert events(run).count("auto_resumed") == 0


def test_an_edited_workflow_waits_for_its_user(root: Path, tmux: Path) -> None:
    run = planted(root, "edited", state="running")
    recorded = {"stages": ["train to step 4", "back up", "train to step 8"], "done": [], "total_steps": 8}
    workflow_file(run).write_text(json.dumps(recorded))
    (kept,) = keep(root)
    assert kept.state == "waiting"
    assert kept.reason.endswith("grpo-train resume --training-run edited --yes")
    assert subprocess.run(["tmux", "has-session", "-t", "=edited"], capture_output=True).returncode


def test_a_run_that_is_lost_again_and_again_is_given_up(root: Path, tmux: Path) -> None:
    run = planted(root, "hopeless")
    for _ in range(ATTEMPTS):
        run.log_event("auto_resumed", from_step=0, stages_done=0)
    (kept,) = keep(root)
    assert kept == ("hopeless", "given up", f"resumed {ATTEMPTS} times from step 0 without progress")


def test_exactly_one_of_the_options_is_required(root: Path) -> None:
    for options in ((), ("--once", "--install")):
        done = command_here("keeper", *options, root=root)
        assert (done.returncode, "exactly one of" in done.stderr) == (2, True)


# ------------------------------------------------------------------------------------------------- installation


@pytest.mark.parametrize("name", ["root", "a root, 100% 'quoted' $HOME"])
def test_systemd_accepts_the_units(tmp_path: Path, name: str) -> None:
    root, units = tmp_path / name, tmp_path / "units"
    units.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HF_HOME": "/data/50% full",
        "HF_TOKEN": "no",
        "CUDA_X": 'a"b',
        "OTHER": "1",
    }
    unit = keeper_unit.unit_name(root)
    (units / f"{unit}.service").write_text(keeper_unit.service(root, environment))
    (units / f"{unit}.timer").write_text(keeper_unit.timer())
    files = [str(units / f"{unit}.{suffix}") for suffix in ("service", "timer")]
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", *files],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    about_ours = [line for line in checked.stderr.splitlines() if unit in line]
    assert (checked.returncode, about_ours) == (0, []), checked.stderr
    text = (units / f"{unit}.service").read_text()
    assert 'Environment="HF_HOME=/data/50%% full"' in text
    assert "TOKEN" not in text
    assert "OTHER" not in text
    assert "KillMode=process" in text


CRONTAB = """#!/bin/sh
if [ "$1" = -l ]; then cat {file} 2>/dev/null || {{ echo "no crontab for you" >&2; exit 1; }}; else cat > {file}; fi
"""


def test_cron_is_used_without_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a crontab that stores its text in a file."""
    programs, file = tmp_path / "bin", tmp_path / "crontab.txt"
    programs.mkdir()
    (programs / "crontab").write_text(CRONTAB.format(file=file))
    (programs / "crontab").chmod(0o755)
    for word in ("sh", "cat"):
        (programs / word).symlink_to(shutil.which(word) or "")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file.write_text("5 4 * * * mine\n")
    one, other = tmp_path / "one", tmp_path / "other 100%"
    for root in (one, other, one):
        keeper_unit.install(root)
    lines = file.read_text().splitlines()
    assert lines[0] == "5 4 * * * mine"
    assert [line.split()[0] for line in lines[1:]] == ["@reboot", "*/2"] * 2, "once for each root"
    assert r"other 100\%" in file.read_text()
    assert keeper_unit.uninstall(one) == ["removed from your crontab"]
    assert len(file.read_text().splitlines()) == 3
    keeper_unit.uninstall(other)
    assert file.read_text() == "5 4 * * * mine\n"
    assert keeper_unit.uninstall(one) == ["the keeper is not installed for this root"]


def test_without_systemd_and_cron_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(keeper_unit.KeeperError, match=r"have your box run this at boot: .*keeper --once --root"):
        keeper_unit.install(tmp_path)
