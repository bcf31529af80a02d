"""The entry of the shell's commands: options, the box, the command, its exit code."""

from __future__ import annotations

import argparse
import json
import sys

from grpo_train.run_dir.errors import UserError
from grpo_tui.shell.options import CHANGES, exit_code, parser
from remote.protocol import RemoteError

FAILED, INTERRUPTED = 1, 130


def run(words: list[str]) -> int:
    """Run a command; returns the exit code."""
    arguments = parser(words[0]).parse_args(words[1:])
    try:
        return _run(words[0], arguments)
    except UserError as error:
        return _fail(arguments, 2 if words[0] == "doctor" else exit_code(error.code), error)
    except BrokenPipeError:
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(command: str, arguments: argparse.Namespace) -> int:
    if command == "boxes":
        from grpo_tui.shell.boxes import boxes

        return boxes(arguments)
    if command == "instances":
        from grpo_tui.shell.boxes import instances

        return instances(arguments)
    from grpo_tui.cli import first_box

    box = first_box(arguments)
    if command == "doctor":
        from grpo_tui.shell.doctor import doctor

        return doctor(box, arguments)
    if command == "env":
        from grpo_tui.shell.up import environment

        return environment(box, arguments)
    if command == "sync":
        from grpo_tui.shell.copying import sync

        return sync(box, arguments)
    if command == "up":
        from grpo_tui.shell.up import up

        return up(box, arguments)
    if command == "tensorboard":
        from grpo_tui.shell.look import tensorboard

        return tensorboard(box, arguments)
    from grpo_tui.shell import change, look

    commands = change.COMMANDS if command in CHANGES else look.COMMANDS
    return commands[command](box, arguments)


def _fail(arguments: argparse.Namespace, code: int, error: UserError) -> int:
    hint = str(getattr(error, "hint", ""))
    message = error.message if isinstance(error, RemoteError) else str(error)
    if arguments.json:
        print(json.dumps({"error": {"code": error.code, "message": message, "hint": hint}}, indent=1))
    print(f"grpo-tui: {message}" + (f"; {hint}" if hint else ""), file=sys.stderr)
    return code
