"""``grpo-tui up`` and ``env``: from a bare box to the first step of a run. What is there already is kept."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_train.run_dir.display import metric_value
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.status import LIVE_STATES
from grpo_tui.shell.change import launch_params, say_notes
from grpo_tui.shell.connection import ShellConnection
from grpo_tui.shell.copying import PARTIAL, bring, told
from grpo_tui.shell.look import queued
from remote.boxes import Box
from remote.protocol import RemoteError
from remote.protocol.jobs import MAX_ENV_BYTES

INTERRUPTED = 130
SETUP_LOOK_S = 0.5
_SHOWN_LINES = 2_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment(box: Box, arguments: argparse.Namespace) -> int:
    """Run ``env put`` or ``env setup``."""
    return ACTIONS[arguments.action](box, arguments)


def put(box: Box, arguments: argparse.Namespace) -> int:
    """Send a file of variables to the box, where every job of the account reads it."""
    file = Path(arguments.file or ".env").expanduser()
    text, names = read_env(file)
    if arguments.dry_run:
        print(json.dumps({"variables": names}, indent=1) if arguments.json else "\n".join(names))
        return 0
    with ShellConnection(box, readonly=arguments.readonly) as connection:
        reply = connection.request("place_env", text=text, idempotency_key=secrets.token_hex(12))
    if arguments.json:
        print(json.dumps({**reply, "variables": names}, indent=1))
    else:
        done = "replaced" if reply["replaced"] else "written"
        print(f"{box.name}: {reply['path']} {done}: {', '.join(names) or 'no variables'}")
    return 0


def read_env(file: Path) -> tuple[str, list[str]]:
    """The text of a ``.env``, and the names of its variables. Raises UserError with the line, never with a value."""
    from dotenv.parser import parse_stream

    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; .env.example in the repository shows one", code="no_file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{file}: cannot read: {reason}", code="no_file") from None
    if len(text.encode()) > MAX_ENV_BYTES:
        raise UserError(f"{file}: larger than {MAX_ENV_BYTES:,} bytes", code="bad_config")
    lines: dict[str, int] = {}
    with file.open(encoding="utf-8") as stream:
        for binding in parse_stream(stream):
            blank = len(binding.original.string) - len(binding.original.string.lstrip())
            number = binding.original.line + binding.original.string[:blank].count("\n")
            if binding.error or (binding.key is not None and binding.value is None):
                raise UserError(f"{file}:{number}: expected NAME=value", code="bad_config")
            if binding.key is None:
                continue
            if not _NAME.fullmatch(binding.key):
                raise UserError(f"{file}:{number}: this is not a variable's name", code="bad_config")
            if binding.key in lines:
                first = f"first defined on line {lines[binding.key]}"
                raise UserError(f"{file}:{number}: duplicate variable '{binding.key}' ({first})", code="bad_config")
            lines[binding.key] = number
    return text, sorted(lines)


def set_up(box: Box, arguments: argparse.Namespace) -> int:
    """Install the engine on the box in a tmux session, and print what the session prints until it ends."""
    if arguments.file:
        raise UserError("'env setup' takes no file", code="bad_request")
    with ShellConnection(box, readonly=arguments.readonly) as connection:
        if arguments.dry_run:
            reply = connection.request("set_up", dry_run=True)
            print(json.dumps(reply, indent=1) if arguments.json else " ".join(reply["argv"]))
            return 0
        try:
            session = follow_setup(connection)
        except KeyboardInterrupt:
            again = "it continues there; run the command again to follow it"
            print(f"grpo-tui: interrupted. {again}", file=sys.stderr)
            return INTERRUPTED
    if arguments.json:
        print(json.dumps({"box": box.name, "session": session, "exit_status": 0}, indent=1))
    return 0


def follow_setup(connection: ShellConnection) -> str:
    """Set the engine up, or follow a setup that is at work, to its end; returns its session.

    Raises RemoteError ``setup_failed``.
    """
    box = connection.box.name
    session = str(connection.request("set_up", idempotency_key=secrets.token_hex(12))["session"])
    where = f"tmux session {session} on {box}"
    print(f"setting up in {where} (grpo-tui attach {session} --box {box})", file=sys.stderr)
    row, last = _follow(connection, session)
    if row.get("exit_status") != 0:
        reason = row.get("signal") or f"exit status {row.get('exit_status')}"
        hint = "fix the cause and run the command again: it continues where it was"
        raise RemoteError("setup_failed", f"{box}: the setup failed ({reason}): {last}", hint)
    return session


def _follow(connection: ShellConnection, session: str) -> tuple[dict[str, Any], str]:
    """Print the lines of a session as they come; returns its row when it has ended, and its last line.

    Raises RemoteError ``setup_failed`` where the session is gone.
    """
    printed: list[str] = []
    while True:
        rows = connection.request("list_sessions")["sessions"]
        try:
            row = next(each for each in rows if each["name"] == session)
            text = connection.request("capture_pane", session=session, lines=_SHOWN_LINES)["text"]
        except (StopIteration, RemoteError) as error:
            if isinstance(error, RemoteError) and error.code not in ("no_session", "tmux"):
                raise
            message = f"the tmux session {session} ended before the setup did"
            raise RemoteError("setup_failed", message, "run the command again: it continues where it was") from None
        lines = [line.rstrip() for line in str(text).split("\n")]
        lines = [line for line in lines if line and not line.startswith("Pane is dead")]
        for line in lines[len(printed) :]:
            print(line, file=sys.stderr, flush=True)
        printed = lines
        if row["dead"] and (row["exit_status"] is not None or row["signal"]):
            return row, lines[-1] if lines else "it printed nothing"
        time.sleep(SETUP_LOOK_S)


ACTIONS: dict[str, Callable[[Box, argparse.Namespace], int]] = {"put": put, "setup": set_up}


STEP_LOOK_S = 1.0


def up(box: Box, arguments: argparse.Namespace) -> int:
    """Bring the code, set the engine up, launch a config, and wait for its first step."""
    synced = None
    params = launch_params(box, arguments)  # a config that is not valid costs nobody a setup
    if box.code or not (box.repo or box.engine or box.activate):
        synced = bring(box, with_changes=arguments.with_changes, readonly=arguments.readonly)
        _say(told(box, synced))
    else:
        _say(f"{box.name} has code of its own: 'code' in boxes.yaml is not set")
    run, again = "", f"run the command again with  --key {arguments.key}" if arguments.key else "run the command again"
    key = arguments.key or secrets.token_hex(12)
    try:
        with ShellConnection(box, readonly=arguments.readonly) as connection:
            if not (box.engine or box.activate):
                follow_setup(connection)
            reply = connection.request("launch", idempotency_key=key, **params)
            run = str(reply["run"])
            say_notes(reply)
            where = f"as job {reply['job']}" if reply.get("job") else f"in tmux session {reply['session']}"
            _say(f"{run} was launched {where}")
            row = _first_step(connection, run)
    except KeyboardInterrupt:
        left = f"{run} continues on {box.name}" if run else f"nothing was launched; {again}"
        print(f"\ngrpo-tui: interrupted. {left}", file=sys.stderr)
        return INTERRUPTED
    if arguments.json:
        print(json.dumps({**reply, "step": row["step"], "reward": row["reward"]}, indent=1))
    else:
        print(f"{box.name}: {run} trains: step {row['step']}, reward {metric_value(row['reward'])}")
        print(f"watch it: grpo-tui --box {box.name}")
    return PARTIAL if synced and synced.left_out else 0


def _first_step(connection: ShellConnection, run: str) -> dict[str, Any]:
    """The summary of a run that has logged a step. Raises RemoteError ``crashed`` where it ended before."""
    said = ""
    while True:
        row = {**connection.request("show_run", run=run)["summary"], **queued(connection, run)}
        state = str(row.get("state"))
        if row.get("step") and row.get("reward") is not None:
            return row
        if state not in LIVE_STATES and state != "requeued":
            error = row.get("error") or {}
            reason = error.get("summary") or row.get("reason") or "it logged no step"
            hint = f"grpo-tui tail {run} console --box {connection.box.name}"
            raise RemoteError("crashed", f"{run}: {state}: {reason}", hint)
        if state != said:
            said = state
            _say(f"{run}: {state}")
        time.sleep(STEP_LOOK_S)


def _say(text: str) -> None:
    print(f"grpo-tui: {text}", file=sys.stderr, flush=True)
