"""The requests that change something: launch, resume, evaluate, stop, kill.

Each command line is a list until tmux takes it. With ``dry_run`` the first three check everything, start nothing, and
return the exact ``argv``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_train.run_dir import (
    RunDir,
    check_name,
    create_run,
    list_runs,
    open_run,
    prepare_root,
)
from grpo_train.run_dir.kill import TERM_WAIT_S, kill_run, record_end
from grpo_train.run_dir.processes import (
    is_alive,
    signal_quietly,
    start_ticks,
)
from remote.agent.context import Place, find_engine, verify_engine
from remote.agent.sessions import Sessions, of_whom, session_name
from remote.protocol import RemoteError


def text(params: dict[str, Any], key: str, default: str | None = None) -> str:
    """A text parameter. Raises RemoteError ``bad_request`` when it is missing (without a default) or no text."""
    value = params.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value and default is None) or "\0" in value:
        raise RemoteError("bad_request", f"'{key}' must be a text, not {value!r}")
    return value


def whole(params: dict[str, Any], key: str) -> int | None:
    """A positive whole number, or None. Raises RemoteError ``bad_request``."""
    value = params.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RemoteError("bad_request", f"'{key}' must be a whole number from 1 on, not {value!r}")
    return value


# ------------------------------------------------------------------------------------------------------- launch


def launch(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """Make a run and start its supervisor in a session of its name: {"run", "session", "argv", "started"}.

    An idempotency key that was used already returns its run and starts nothing (unless its session never came up).
    """
    overrides = params.get("overrides") or []
    if not isinstance(overrides, list) or not all(isinstance(item, str) for item in overrides):
        raise RemoteError("bad_request", "'overrides' must be a list of section.key=value")
    name = text(params, "run_name", "") or None
    if name:
        check_name(name)
    wanted: dict[str, Any] = {
        "config_text": text(params, "config_text"),
        "config_name": text(params, "config_name", ""),
        "overrides": overrides,
        "ckpt": text(params, "ckpt", "") or None,
        "nproc": whole(params, "nproc"),
        "by": text(params, "by", ""),
        "idempotency_key": text(params, "idempotency_key", "") or None,
    }
    sessions, engine = Sessions(place), find_engine(place)
    sessions.require()

    def command(run: str) -> list[str]:
        return [*engine.argv, "supervise", run, "--root", str(place.root)]

    if params.get("dry_run"):
        run_name = name or datetime.now().strftime("run_%Y-%m-%d_%H-%M-%S")
        if name and (place.root / "training_runs" / name).exists():
            raise RemoteError("run", f"a run named {name} exists already under {place.root}", "choose another name")
        return {
            "run": run_name,
            "session": session_name(run_name),
            "argv": command(run_name),
            "by_hand": [*_by_hand(wanted), *(["--run-name", name] if name else []), "--root", str(place.root)],
            "engine": engine.how,
            "dry_run": True,
        }
    prepare_root(place.root)
    verify_engine(place, engine)
    with _one_launch_at_a_time(place.root):
        run = _run_of_key(place.root, wanted["idempotency_key"])
        if run is None:
            if name:
                sessions.make_room(session_name(name))
            run = create_run(place.root, {"argv": _by_hand(wanted), **wanted}, name)
        session, argv = session_name(run.name), command(run.name)
        result = {"run": run.name, "session": session, "argv": argv}
        standing = sessions.find(session)
        if run.status_file.exists() or (standing and standing["run"] == run.name):
            return {**result, "started": False}
        try:
            sessions.start(session, argv, place.directory, place.session_environment(), run.name)
        except RemoteError as error:
            record_end(run, "crashed", by="agent", error=f"its tmux session could not be started: {error.message}")
            raise
    return {**result, "started": True}


def _by_hand(wanted: dict[str, Any]) -> list[str]:
    """The command that does the same from a shell on the box."""
    argv = ["grpo-train", "train", "--cfg", wanted["config_name"] or "config.yaml"]
    argv += ["--ckpt", wanted["ckpt"]] if wanted["ckpt"] else []
    argv += ["--nproc", str(wanted["nproc"])] if wanted["nproc"] else []
    for override in wanted["overrides"]:
        argv += ["--set", override]
    return argv


def _run_of_key(root: Path, key: str | None) -> RunDir | None:
    if not key:
        return None
    return next((run for run in list_runs(root) if run.read_launch().get("idempotency_key") == key), None)


@contextmanager
def _one_launch_at_a_time(root: Path) -> Iterator[None]:
    """After a reconnect a second agent may be asked the same while the first still works on it."""
    import fcntl

    descriptor = os.open(root / "training_runs" / ".launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a mount without locks: create_run's own checks remain
        yield
    finally:
        os.close(descriptor)


# -------------------------------------------------------------------------------------------- resume and evaluate


def resume(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """Go on with a run from a checkpoint, in the run's session: {"run", "session", "argv"}."""
    run = open_run(place.root, text(params, "run"))
    observed = run.observed_state()
    if observed.is_live:
        where = f" on {observed.host}" if observed.host else ""
        raise RemoteError("run_live", f"{run.name} is {observed.state}{where}", "stop it before it is resumed")
    from_step = str(params.get("from_step") or "latest")
    checkpoint = run.checkpoint(from_step)
    arguments = ["resume", "--training-run", run.name, "--from-step", from_step]
    if (additional := whole(params, "additional_steps")) is not None:
        arguments += ["--additional-steps", str(additional)]
    result = _run_in_session(place, params, session_name(run.name), arguments, run.name)
    return {**result, "run": run.name, "step": checkpoint.step}


def evaluate(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """Evaluate checkpoints of a run, or one given by path, in a session ``eval_<run>``: {"session", "argv"}."""
    arguments, run_name, ckpt_path = ["eval"], text(params, "run", ""), text(params, "ckpt_path", "")
    if run_name:
        known = (place.root / "rl_runs" / run_name).is_dir() and "/" not in run_name
        run_name = run_name if known else open_run(place.root, run_name).name
        arguments += ["--training-run", run_name]
    elif not ckpt_path:
        raise RemoteError("bad_request", "say what to evaluate: 'run', or 'ckpt_path'")
    steps = params.get("steps")
    if steps is not None and steps != "" and steps != []:
        joined = ",".join(map(str, steps)) if isinstance(steps, list) else str(steps)
        arguments += ["--steps", joined]
    for key in ("eval_dataset", "eval_path", "ckpt_path", "name", "split"):
        if value := text(params, key, ""):
            arguments += [f"--{key.replace('_', '-')}", value]
    fraction = params.get("subset_frac")
    if fraction is not None:
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
            raise RemoteError("bad_request", f"'subset_frac' must be above 0 and at most 1, not {fraction!r}")
        arguments += ["--subset-frac", str(fraction)]
    temperature = params.get("temperature")
    if temperature is not None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not temperature >= 0:
            raise RemoteError("bad_request", f"'temperature' must be 0 (greedy) or more, not {temperature!r}")
        arguments += ["--temperature", str(temperature)]
    for key in ("batch_size", "max_completion_length", "num_samples", "num_problems", "nproc", "timeout"):
        if (number := whole(params, key)) is not None:
            arguments += [f"--{key.replace('_', '-')}", str(number)]
    label = run_name or check_name(text(params, "name", "") or Path(ckpt_path).name)
    result = _run_in_session(place, params, session_name(f"eval_{label}"), arguments, run_name)
    return {**result, "run": run_name}


def _run_in_session(
    place: Place, params: dict[str, Any], session: str, arguments: list[str], run: str
) -> dict[str, Any]:
    """Start ENGINE ``arguments --root ROOT`` in a session; a dead one of the name is replaced, a live one refused."""
    sessions, engine = Sessions(place), find_engine(place)
    argv = [*engine.argv, *arguments, "--root", str(place.root)]
    result = {"session": session, "argv": argv, "engine": engine.how}
    old = sessions.find(session)
    if old is not None and not old["dead"]:
        raise RemoteError(
            "session_live",
            f"the tmux session '{session}' is alive already{of_whom(old)}",
            "wait until it ends, or stop it first",
        )
    if params.get("dry_run"):
        return {**result, "dry_run": True}
    prepare_root(place.root)
    verify_engine(place, engine)
    sessions.start(session, argv, place.directory, place.session_environment(), run)
    return {**result, "started": True}


# -------------------------------------------------------------------------------------------------- stop and kill


def stop(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """Ask a run to stop after the step under way: {"run", "state"}. It saves and ends by itself."""
    run = open_run(place.root, text(params, "run"))
    observed = run.observed_state()
    if not observed.is_live:
        raise RemoteError("not_running", f"{run.name} is not running: it is {observed.state}")
    run.request_stop(text(params, "by", ""))
    return {"run": run.name, "state": observed.state}


def kill(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """End a run now, without saving: {"run", "state", "left", "forced"}.

    SIGTERM to the supervisor and time to obey (``patience_s``, 15 at most); then SIGKILL to it and to every process
    that carries the run's id. ``killed`` is written if nobody wrote an end. ``left`` names processes that even SIGKILL
    did not end. ``session`` in place of ``run`` ends an evaluation by its session: {"session", "left", "forced"}.
    """
    if session := text(params, "session", ""):
        return _kill_session(place, session)
    run = open_run(place.root, text(params, "run"))
    patience = params.get("patience_s")
    killed = kill_run(
        run,
        by=text(params, "by", ""),
        supervisors=_session_process(place, run),
        patience_s=TERM_WAIT_S if patience is None else min(float(patience), TERM_WAIT_S),
    )
    return {"run": run.name, "state": run.observed_state().state, "left": killed.left, "forced": killed.forced}


def _kill_session(place: Place, name: str) -> dict[str, Any]:
    """End what runs in a session that this agent started; its last words stay on the dead pane."""
    row = Sessions(place).find(name)
    if row is None or row["dead"]:
        raise RemoteError("not_running", f"nothing runs in a tmux session '{name}' on this box")
    if not row["marked"]:
        raise RemoteError("not_ours", f"the tmux session '{name}' was not started from here", "end it from within")
    pid, start, forced = int(row["pid"]), start_ticks(row["pid"]), False
    for number, patience in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, 2.0)):
        forced = number == signal.SIGKILL
        signal_quietly(pid, number)
        deadline = time.monotonic() + patience
        while start is not None and is_alive(pid, start) and time.monotonic() < deadline:
            time.sleep(0.05)
        if start is None or not is_alive(pid, start):
            return {"session": name, "left": [], "forced": forced}
    return {"session": name, "left": [pid], "forced": forced}


def _session_process(place: Place, run: RunDir) -> list[tuple[int, int]]:
    """(pid, start ticks) of the process in the run's tmux session, if any."""
    try:
        session = Sessions(place).find(session_name(run.name))
    except RemoteError:
        return []  # without tmux no session was started
    if not session or session["run"] != run.name or session["dead"] or not session["pid"]:
        return []
    ticks = start_ticks(session["pid"])
    return [] if ticks is None else [(session["pid"], ticks)]
