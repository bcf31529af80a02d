"""Resumes runs that a reboot or a killed supervisor left behind, in their tmux sessions. Torch-free.

For runs with ``run.auto_resume`` on this host whose state is ``lost``. :mod:`grpo_train.supervisor.keeper_unit` has it
run at every boot and every few minutes.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from grpo_train.config import ConfigError, load_config, read_config_text
from grpo_train.config.environment import without_files
from grpo_train.config.schema import Config
from grpo_train.run_dir import ROOT_VARIABLE, RunDir, list_runs
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import closing_descriptor, lock_if_free, open_lock
from grpo_train.run_dir.kill import record_end, was_killed
from grpo_train.run_dir.machine import UMASK_VARIABLE, foreign_owner
from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from grpo_train.run_dir.sessions import (
    OUR_OPTION,
    ROOT_OPTION,
    RUN_OPTION,
    STARTED_OPTION,
    claim,
    is_started,
    lost_server,
    new_session,
    root_mark,
    session_name,
    way_back,
    write_environment,
)
from grpo_train.supervisor.workflow import edited, read_workflow, remaining

ATTEMPTS = 5
"""Resumes from one checkpoint in one stage: a run that is lost again and again there has another problem."""
TMUX_S = 60.0


class KeeperError(UserError):
    """The keeper cannot work on this machine as requested."""

    code = "keeper"


class KeeperRow(NamedTuple):
    """What became of one lost run."""

    run: str
    state: str
    """``resumed``, ``finished`` (only its end was not recorded), ``waiting`` (tried again by the next keeper), ``given
    up`` or ``failed``."""
    reason: str = ""


def keep(root: Path) -> list[KeeperRow]:
    """Resume every lost run of this host with ``run.auto_resume``; one row for each of them.

    Nothing happens while another keeper works on the same root. Raises KeeperError without tmux.
    """
    if not shutil.which("tmux"):
        raise KeeperError("tmux is not installed; sudo apt-get install -y tmux", code="no_tmux")
    with _alone(root) as is_alone:
        return [kept for run in list_runs(root) if (kept := _keep(run))] if is_alone else []


def _keep(run: RunDir) -> KeeperRow | None:
    """Resume one run if it is to be; None for a run that the keeper has nothing to do with."""
    try:
        if foreign_owner(run.path) or run.observed_state().state != "lost" or not _is_of_this_host(run):
            return None
        config = _config(run)
        if config is None or not config.run.auto_resume or was_killed(run) or run.stop_requested():
            return None
        if left := find_by_run_id(run_id_of(run.path)):
            return KeeperRow(run.name, "waiting", f"processes of it are still running: {left}")
        from_step = run.newest_step()
        if from_step >= config.run.total_steps and not remaining(run, config, from_step):
            record_end(run, "finished", by="keeper")  # killed between its last stage and its status
            return KeeperRow(run.name, "finished")
        if edited(run, config):  # nobody could answer the question of grpo-train resume
            confirm = f"grpo-train resume --training-run {run.name} --yes"
            return KeeperRow(run.name, "waiting", f"its workflow was edited; look at it and confirm with  {confirm}")
        here = {"from_step": from_step, "stages_done": len(read_workflow(run).get("done") or [])}
        rows = [row for _, row in run.events() if row.get("event") == "auto_resumed"]
        if sum({key: row.get(key) for key in here} == here for row in rows) >= ATTEMPTS:
            return KeeperRow(run.name, "given up", f"resumed {ATTEMPTS} times from step {from_step} without progress")
        tmux = _tmux_of(run)
        _require_none_lost(run)
        if _has_live_session(tmux, run):
            return KeeperRow(run.name, "waiting", f"its tmux session '{session_name(run.name)}' is still alive")
        run.log_event("auto_resumed", by="keeper", **here)
        _start(tmux, run)
        return KeeperRow(run.name, "resumed", f"from step {from_step}")
    except (UserError, OSError, subprocess.SubprocessError) as error:  # one run must not cost the others
        return KeeperRow(run.name, "failed", str(error))


def _is_of_this_host(run: RunDir) -> bool:
    written = run.read_status() or run.read_launch()
    return written.get("host") == socket.gethostname()


def _config(run: RunDir) -> Config | None:
    """The run's config, or that of its launch; None for one that never loaded."""
    try:
        if run.config_file.exists():
            return load_config(read_config_text(run.config_file), source=str(run.config_file))
        launch = run.read_launch()
        overrides = [str(one) for one in launch.get("overrides") or []]
        return load_config(str(launch.get("config_text", "")), overrides, source=str(run.launch_file))
    except ConfigError:
        return None


# -------------------------------------------------------------------------------------------------------- tmux


def _tmux_of(run: RunDir) -> list[str]:
    """tmux with the socket that the run was launched on (default: the default socket)."""
    recorded = run.read_launch().get("tmux")
    if not isinstance(recorded, str) or not os.path.isabs(recorded):
        return ["tmux"]
    socket_file = Path(recorded)
    usual = Path(os.environ.get("TMUX_TMPDIR") or "/tmp") / f"tmux-{os.geteuid()}"
    if socket_file.parent == usual:
        return ["tmux", "-L", socket_file.name]  # tmux makes the directory, which a reboot may have removed
    socket_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ["tmux", "-S", recorded]


def _require_none_lost(run: RunDir) -> None:
    """Raise KeeperError for a server whose socket was removed: a second one would take its place."""
    usual = Path(os.environ.get("TMUX_TMPDIR") or "/tmp") / f"tmux-{os.geteuid()}" / "default"
    recorded = run.read_launch().get("tmux")
    file = Path(recorded) if isinstance(recorded, str) and os.path.isabs(recorded) else usual
    if (pid := lost_server(file)) is not None:
        message, command = way_back(file, pid)
        raise KeeperError(f"{message}; run: {command}", code="tmux")


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TMUX_S, stdin=subprocess.DEVNULL, env=without_files()
    )


def _has_live_session(tmux: list[str], run: RunDir) -> bool:
    """Whether the run's session has a living process, a user's or ours; what we started, and ended, is removed."""
    row = f"#{{pane_id}} #{{pane_pid}} d#{{pane_dead}} s#{{{STARTED_OPTION}}}"
    shown = _call([*tmux, "list-panes", "-s", "-t", f"={session_name(run.name)}:", "-F", row])
    panes = [line.split() for line in shown.stdout.splitlines()] if shown.returncode == 0 else []
    if any(dead != "d1" for _, _, dead, _ in panes):
        return True
    for pane, pid, _, started in panes:
        if is_started(pane, pid, started[1:]):
            _call([*tmux, "kill-pane", "-t", pane])
    return False


def _start(tmux: list[str], run: RunDir) -> None:
    """Start ``grpo-train resume`` (or ``supervise``, before a config was written) in the run's session."""
    name, root = session_name(run.name), str(run.root)
    engine = [sys.executable, "-m", "grpo_train.cli"]
    words = ["resume", "--training-run", run.name] if run.config_file.exists() else ["supervise", run.name]
    umask = 0o777 & ~stat.S_IMODE(run.path.stat().st_mode)
    variables = {ROOT_VARIABLE: root, UMASK_VARIABLE: f"{umask:03o}"}
    marks = {RUN_OPTION: run.name, OUR_OPTION: "1", ROOT_OPTION: root_mark(run.root)}
    environment, argv = write_environment({**without_files(), **variables}), [*engine, *words, "--root", root]
    done = _call([*tmux, *new_session(name, argv, _directory(run), environment, variables, marks)])
    if not done.returncode:
        done = _call([*tmux, *claim(done.stdout)])
    if done.returncode:
        environment.unlink(missing_ok=True)
        raise KeeperError(f"tmux could not start a session: {done.stderr.strip() or done.returncode}", code="tmux")


def _directory(run: RunDir) -> str:
    """Where the run was started: its ``.env`` may hold what the run needs."""
    recorded: Any = (run.read_status() or {}).get("directory")
    return recorded if isinstance(recorded, str) and os.path.isdir(recorded) else str(run.root)


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Hold the keeper's lock of a root; False while another keeper does."""
    folder = root / "training_runs"
    if not folder.is_dir():
        raise KeeperError(f"{folder} does not exist; is the root mounted?", code="bad_root")
    with closing_descriptor(open_lock(folder / ".keeper.lock")) as descriptor:
        yield lock_if_free(descriptor)
