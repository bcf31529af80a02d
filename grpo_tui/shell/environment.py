"""``grpo-tui env``: put a ``.env`` on a box, and set up its engine."""

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

from grpo_train.run_dir.errors import UserError
from grpo_tui.shell.connection import ShellConnection
from remote.boxes import Box
from remote.protocol import RemoteError
from remote.protocol.prepare import MAX_ENV_BYTES

INTERRUPTED = 130
LOOK_EVERY_S = 0.5
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
        time.sleep(LOOK_EVERY_S)


ACTIONS: dict[str, Callable[[Box, argparse.Namespace], int]] = {"put": put, "setup": set_up}
