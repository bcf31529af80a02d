"""``grpo-tui up``: from a bare box to the first step of a run. What is there already is kept, so it may be repeated."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from typing import Any

from grpo_train.run_dir.status import LIVE_STATES
from grpo_tui.shell.change import launch_params, say_notes
from grpo_tui.shell.connection import ShellConnection
from grpo_tui.shell.copying import PARTIAL
from grpo_tui.shell.environment import follow_setup
from grpo_tui.shell.look import queued
from grpo_tui.shell.sync import bring, told
from remote.boxes import Box
from remote.protocol import RemoteError

INTERRUPTED = 130
LOOK_EVERY_S = 1.0


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
        print(f"{box.name}: {run} trains: step {row['step']}, reward {row['reward']:.3g}")
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
        time.sleep(LOOK_EVERY_S)


def _say(text: str) -> None:
    print(f"grpo-tui: {text}", file=sys.stderr, flush=True)
