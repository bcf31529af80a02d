"""Commands that change a box: launch, resume, eval, stop, kill. Each request has an idempotency key."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from grpo_train.history.cost import Forecast
from grpo_train.run_dir.errors import UserError
from grpo_tui.box.unanswered import OUTCOMES, requester
from grpo_tui.shell.connection import ShellConnection
from grpo_tui.shell.options import config_of
from remote.boxes import Box, notify_overrides
from remote.protocol import RemoteError
from remote.protocol.jobs import EvaluateRequest

FAILED, INTERRUPTED = 1, 130


def launch(box: Box, arguments: argparse.Namespace) -> int:
    """Launch a run."""
    return _change(box, arguments, "launch", launch_params(box, arguments))


def launch_params(box: Box, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a launch. Raises UserError for a config that is not valid."""
    name, text, overrides = config_of(arguments)
    overrides += notify_overrides(box.notify, text, overrides)
    params = {"config_text": text, "config_name": name, "overrides": overrides, "by": requester()}
    options = {"ckpt": arguments.ckpt, "run_name": arguments.run_name, "nproc": arguments.nproc}
    return set_fields({**params, **options, "slurm": arguments.slurm})


def set_fields(params: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that are set."""
    return {name: value for name, value in params.items() if value not in (None, "", [])}


def resume(box: Box, arguments: argparse.Namespace) -> int:
    """Resume a run."""
    counts = {"additional_steps": arguments.additional_steps, "nproc": arguments.nproc}
    params = {"run": arguments.run, "from_step": arguments.from_step, "overrides": arguments.set or [], **counts}
    params["code"] = arguments.code
    return _change(box, arguments, "resume", params)


def evaluate(box: Box, arguments: argparse.Namespace) -> int:
    """Evaluate checkpoints."""
    if bool(arguments.run) == bool(arguments.ckpt_path):
        raise UserError("either RUN or --ckpt-path is required", code="bad_config")
    names = [field.name for field in fields(EvaluateRequest) if hasattr(arguments, field.name)]
    params = {name: getattr(arguments, name) for name in names if getattr(arguments, name) not in (None, "")}
    return _change(box, arguments, "evaluate", params)


def stop(box: Box, arguments: argparse.Namespace) -> int:
    """Stop a run."""
    return _change(box, arguments, "stop", {"run": arguments.run, "by": requester()})


def kill(box: Box, arguments: argparse.Namespace) -> int:
    """Kill a run or an evaluation, after a confirmation."""
    if bool(arguments.run) == bool(arguments.session):
        raise UserError("either RUN or --session is required", code="bad_config")
    target = arguments.run or arguments.session
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UserError("kill does not save; confirm it with --yes", code="not_confirmed")
        if input(f"Kill {target} on {box.name} without saving? [y/N] ").strip().lower() not in ("y", "yes"):
            raise UserError("not confirmed", code="not_confirmed")
    which = {"run": arguments.run} if arguments.run else {"session": arguments.session}
    return _change(box, arguments, "kill", {**which, "by": requester()})


def _change(box: Box, arguments: argparse.Namespace, op: str, params: dict[str, Any]) -> int:
    """Send a request once, and print what came of it."""
    key = arguments.key or secrets.token_hex(12)
    if getattr(arguments, "dry_run", False):
        params = {**params, "dry_run": True}
    params = set_fields(params)
    repeat = f"to learn what happened, repeat the command with  --key {key}  (it is carried out at most once)"
    with ShellConnection(box, readonly=arguments.readonly) as connection:
        try:
            reply = connection.request(op, idempotency_key=key, **params)
        except RemoteError as error:
            if error.code == "timeout":
                raise RemoteError(error.code, error.message, repeat) from error
            raise
        except KeyboardInterrupt:
            print(f"grpo-tui: interrupted; {repeat}", file=sys.stderr)
            return INTERRUPTED
    if arguments.json:
        print(json.dumps({**reply, "idempotency_key": key}, indent=1))
    else:
        if op in ("launch", "resume"):
            say_notes(reply)
            for line in Forecast.from_json(reply.get("estimate") or {}).lines(box.price_at(time.time())):
                print(f"grpo-tui: {line}", file=sys.stderr)
        print(_outcome(op, params, reply, box))
    return FAILED if reply.get("left") else 0


def say_notes(reply: dict[str, Any]) -> None:
    """Print what the box says about a launch or resume to stderr."""
    for line in str(reply.get("note") or "").splitlines():
        print(f"grpo-tui: {line}", file=sys.stderr, flush=True)


def _outcome(op: str, params: dict[str, Any], reply: dict[str, Any], box: Box) -> str:
    """What a change did, in a line or two."""
    run = str(reply.get("run") or reply.get("session") or params.get("session") or "")
    if params.get("dry_run"):
        return shlex.join(map(str, reply["argv"]))
    if left := reply.get("left"):
        return f"{run} is still running: processes {', '.join(map(str, left))} did not end"
    done = f"{box.name}: {OUTCOMES[op].format(run=run)}"
    if op == "stop":
        done += ": it stops after its current step and saves"
    elif reply.get("started") is False:
        done += " before, by a command with this key"
    elif job := reply.get("job"):
        done += f" as job {job}"
    elif session := reply.get("session") if op != "kill" else "":
        done += f" in tmux session {session}"
    return done + (f" ({reply['note']})" if reply.get("note") and op in ("stop", "kill") else "")


COMMANDS: dict[str, Callable[[Box, argparse.Namespace], int]] = {
    "launch": launch, "resume": resume, "eval": evaluate, "stop": stop, "kill": kill,
}  # fmt: skip
