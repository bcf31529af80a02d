"""Commands that only read: runs, show, tail, gpu, sessions, capture, attach, tensorboard."""

from __future__ import annotations

import argparse
import json
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from grpo_train.run_dir.display import metric_value
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.evaluations import trouble_of
from grpo_train.run_dir.sessions import session_name
from grpo_tui.box.events import tracking_of
from grpo_tui.box.formatting import print_table
from grpo_tui.box.gpus import unlisted
from grpo_tui.box.link import TENSORBOARD_PORT, TENSORBOARD_S
from grpo_tui.box.rows import RunRow
from grpo_tui.box.run_columns import verdict_label
from grpo_tui.kit.attach import attach_command, call_in_foreground, plan_job
from grpo_tui.shell.connection import ShellConnection
from remote.boxes import Box
from remote.events import ClientEvent, GpuSampled, LogArrived, LogFailed, LogRotated, TopicFailed
from remote.gate import log_text
from remote.protocol import Cursor, RemoteError
from remote.protocol.logs import MAX_CHARACTERS, MAX_LINES
from remote.protocol.rows import UNREADABLE
from remote.tunnels import Tunnel

GPU_S = 20.0
MAX_CAPTURED = 5_000


def runs(box: Box, arguments: argparse.Namespace) -> int:
    """Print the runs of a box; returns 1 where SLURM could not be asked about one."""
    with ShellConnection(box, readonly=True) as connection:
        rows = connection.request("list_runs", verdicts=True)["runs"]
    if arguments.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        print_table(("run", "state", "verdict", "step", "reward", "device"), [_run_cells(row) for row in rows])
    else:
        print(f"no runs on {box.name}")
    return int(any(row.get("unasked") for row in rows))


def _run_cells(row: dict[str, Any]) -> list[str]:
    run = RunRow.from_summary(row)
    reward, device = _number(row.get("reward")), str(row.get("device") or "")
    return [str(row["run"]), run.label[1], verdict_label(run), _progress(row), reward, device]


def _progress(row: dict[str, Any]) -> str:
    return f"{row.get('step', 0)}/{row.get('total_steps') or '?'}"


def _number(value: Any) -> str:
    return metric_value(value) if isinstance(value, float) else str(value or "")


def show(box: Box, arguments: argparse.Namespace) -> int:
    """Print everything about a run."""
    with ShellConnection(box, readonly=True) as connection:
        reply = connection.request("show_run", run=arguments.run, verdict=True)
        reply["summary"] = {**reply["summary"], **queued(connection, arguments.run)}
    print(json.dumps(reply, indent=1) if arguments.json else "\n".join(_facts(reply)))
    return 0


def queued(connection: ShellConnection, run: str) -> dict[str, Any]:
    """The row of a run in the list, which has its SLURM job; {} if it is not listed, or the box has no scheduler."""
    if connection.box.scheduler != "slurm":
        return {}
    return next((dict(row) for row in connection.request("list_runs")["runs"] if row["run"] == run), {})


def _facts(reply: dict[str, Any]) -> Iterator[str]:
    row = {"run": reply["run"], **reply["summary"]}
    cells = _run_cells(row)
    if (verdict := RunRow.from_summary(row).verdict) is not None:
        yield f"{verdict.mark} {verdict.word}: {verdict.text}"
    yield f"{cells[0]}: {cells[1]}, step {cells[3]}, reward {cells[4] or '-'}"
    yield f"  {reply['path']}"
    if error := row.get("error"):
        yield f"  error: {error.get('summary')}"
        yield from (f"  | {line}" for line in error.get("console_tail") or ())
    if problem := reply.get("config_problem"):
        yield f"  {problem}"
    if (tracking := tracking_of(reply["run"], reply["events"])).error:
        yield f"  W&B: {tracking.error}; send it later, on the box: {tracking.command}"
    for each in reply["checkpoints"]:
        yield f"  step_{each.get('step')}  {each.get('problem') or 'complete'}"
    for evaluation in reply["evaluations"]:
        if trouble := trouble_of(evaluation):
            yield f"  {trouble}"
        for result in evaluation.get("metrics") or ():
            yield f"  {evaluation['name']}: step {result.get('step')} accuracy {result.get('accuracy')}"


def tail(box: Box, arguments: argparse.Namespace) -> int:
    """Print the last lines of a log, and with ``--follow`` what is added."""
    if not 0 <= arguments.lines <= MAX_LINES:
        raise UserError(f"--lines: must be from 0 to {MAX_LINES}, not {arguments.lines}", code="bad_config")
    if arguments.follow and arguments.json:
        raise UserError("--follow cannot be combined with --json", code="bad_config")
    arrived: queue.SimpleQueue[ClientEvent] = queue.SimpleQueue()
    with ShellConnection(box, readonly=True, on_event=arrived.put) as connection:
        path = _log_path(connection, arguments.run, arguments.file)
        reply = connection.request(
            "read_log", run=arguments.run, path=path, before=arguments.lines, after=0, characters=MAX_CHARACTERS
        )
        lines = [str(line.get("text", "")) for line in reply["lines"] if not (line.get("open") and arguments.follow)]
        if arguments.json:
            print(json.dumps({"run": arguments.run, "path": path, "lines": lines}, indent=1))
        else:
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        if arguments.follow:
            _follow(connection, arrived, Cursor(path, reply["end"]))
    return 0


def _log_path(connection: ShellConnection, run: str, name: str) -> str:
    """Path of a log, given as ``console``, ``train_log.jsonl`` or a path. Raises UserError (``no_log``)."""
    files = [row["path"] for row in connection.request("log_files", run=run)["files"]]
    for path in files:
        file = path.rpartition("/")[2]
        if name in (path, file, file.rpartition(".")[0]):
            return str(path)
    names = ", ".join(path.rpartition("/")[2] for path in files) or "none"
    raise UserError(f"{run} has no log '{name}' (its logs: {names})", code="no_log")


def _follow(connection: ShellConnection, arrived: queue.SimpleQueue[ClientEvent], cursor: Cursor) -> None:
    """Print each line as it is completed, until Ctrl-C."""
    subscription, rest = connection.client.follow(cursor.path, cursor), b""
    while True:
        event = arrived.get()
        if getattr(event, "subscription", None) != subscription:
            continue
        if isinstance(event, LogFailed):
            raise RemoteError("no_log", event.message)
        if isinstance(event, LogRotated):
            rest = b""
        if isinstance(event, LogArrived):
            connection.client.consumed(subscription, len(event.data))
            *lines, rest = (rest + event.data).split(b"\n")
            for line in lines:
                print(log_text(line), flush=True)


def gpu(box: Box, arguments: argparse.Namespace) -> int:
    """Print a sample of each GPU."""
    heard: queue.Queue[ClientEvent] = queue.Queue()
    with ShellConnection(box, readonly=True, on_event=heard.put):
        sampled = first_sample(heard)
    if arguments.json:
        print(json.dumps({"gpus": sampled.gpus, "note": sampled.note}, indent=1))
    elif sampled.gpus:
        print_table(
            ("GPU", "name", "use %", "memory MiB", "W", "°C", "processes"), [_gpu_cells(g) for g in sampled.gpus]
        )
    else:
        print(sampled.note or f"no GPU on {box.name}")
    return 0


def first_sample(heard: queue.Queue[ClientEvent]) -> GpuSampled:
    """The first sample of the GPUs. Raises RemoteError with the box's reason where it cannot read them."""
    until = time.monotonic() + GPU_S
    while True:
        try:
            event = heard.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise RemoteError("no_answer", f"no sample within {GPU_S:.0f} s") from None
        if isinstance(event, GpuSampled):
            return event
        if isinstance(event, TopicFailed) and event.topic == "gpu":
            raise RemoteError("no_answer", event.message)


def _gpu_cells(row: dict[str, Any]) -> list[str]:
    numbers = [row.get(key) for key in ("utilization_percent", "power_w", "temperature_c")]
    use, watts, degrees = ("" if value is None else f"{value:.0f}" for value in numbers)
    sizes = [row.get(key) for key in ("memory_used_mib", "memory_total_mib")]
    memory = "/".join("?" if size is None else f"{size:.0f}" for size in sizes)
    users = [str(each.get("run") or each.get("name") or each.get("pid")) for each in row.get("processes") or ()]
    users = users or [str(row.get("problem") or row.get(UNREADABLE) or unlisted(row))]
    return [str(row.get("index", "")), str(row.get("name", "")), use, memory, watts, degrees, ", ".join(users)]


def sessions(box: Box, arguments: argparse.Namespace) -> int:
    """Print the tmux sessions of a box."""
    with ShellConnection(box, readonly=True) as connection:
        rows = connection.request("list_sessions")["sessions"]
    if arguments.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        print_table(("session", "run", "state", "attached"), [_session_cells(row) for row in rows])
    else:
        print(f"no tmux sessions on {box.name}")
    return 0


def _session_cells(row: dict[str, Any]) -> list[str]:
    ended = f"ended ({row.get('signal') or row.get('exit_status')})"
    state = ended if row.get("dead") else "running"
    return [str(row["name"]), str(row.get("run") or ""), state, str(row.get("attached") or 0)]


def capture(box: Box, arguments: argparse.Namespace) -> int:
    """Print the last lines of a session."""
    if not 1 <= arguments.lines <= MAX_CAPTURED:
        raise UserError(f"--lines: must be from 1 to {MAX_CAPTURED}, not {arguments.lines}", code="bad_config")
    with ShellConnection(box, readonly=True) as connection:
        name = _session(connection, arguments.session)
        reply = connection.request("capture_pane", session=name, lines=arguments.lines)
    print(json.dumps(reply, indent=1) if arguments.json else str(reply["text"]).rstrip("\n"))
    return 0


def _session(connection: ShellConnection, name: str) -> str:
    """The session of this name, or that of a run. Raises RemoteError (``no_session``)."""
    names = [row["name"] for row in connection.request("list_sessions")["sessions"]]
    if found := next((each for each in (name, session_name(name)) if each in names), ""):
        return str(found)
    row = queued(connection, name)
    if row.get("unasked"):
        raise RemoteError("slurm", f"SLURM could not be asked for the job of {name}: {row['unasked']}", "try again")
    if job := row.get("job"):
        hint = f"'grpo-tui tail {name} console' prints its output, 'grpo-tui attach {name}' opens a shell in the job"
        raise RemoteError("no_session", f"{name} has no tmux session: it is job {job['id']} of SLURM", hint)
    raise RemoteError("no_session", f"no tmux session '{name}' on this box (sessions: {', '.join(names) or 'none'})")


def attach(box: Box, arguments: argparse.Namespace) -> int:
    """Attach this terminal to a session, or to a shell in a run's job; with ``--json``, print the command instead."""
    if not arguments.json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("attach needs a terminal (--json prints the command)", code="no_terminal")
    with ShellConnection(box, readonly=True) as connection:  # ssh shares its connection while it is open
        if job := queued(connection, arguments.session).get("job"):
            argv = plan_job(box, f"job {job['id']}").argv
        else:
            argv = attach_command(box, _session(connection, arguments.session))
        if not arguments.json:
            return call_in_foreground(argv)
    print(json.dumps({"argv": argv}, indent=1))
    return 0


COMMANDS: dict[str, Callable[[Box, argparse.Namespace], int]] = {
    "runs": runs, "show": show, "tail": tail, "gpu": gpu, "sessions": sessions, "capture": capture, "attach": attach,
}  # fmt: skip


def tensorboard(box: Box, arguments: argparse.Namespace) -> int:
    """Start it, print its address, and keep it open."""
    with ShellConnection(box, readonly=arguments.readonly) as connection:
        reply = connection.request(
            "open_tensorboard", TENSORBOARD_S, run=arguments.run, idempotency_key=secrets.token_hex(12)
        )
        port, exact = arguments.port or TENSORBOARD_PORT, arguments.port is not None
        with Tunnel(connection.client, "127.0.0.1", reply["port"], local_port=port, exact=exact, holds=True) as tunnel:
            url = f"http://{tunnel.local}{reply['path']}"
            print(json.dumps({"url": url, "session": reply["session"]}) if arguments.json else url, flush=True)
            print("Ctrl-C ends it", file=sys.stderr)
            if arguments.open:
                import webbrowser

                webbrowser.open(url)
            threading.Event().wait()
    return 0
