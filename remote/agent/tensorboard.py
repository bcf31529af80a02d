"""TensorBoard for a run: ``grpo-train tensorboard`` in a session, whose port and path come from a private file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from grpo_train.run_dir import open_run
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.sessions import session_name
from remote.agent.context import BoxContext
from remote.agent.jobs import run_in_session
from remote.agent.once import Record
from remote.agent.sessions import Sessions
from remote.protocol import RemoteError
from remote.protocol.tensorboard import OpenTensorBoardReply, OpenTensorBoardRequest

START_S = 60.0
POLL_S = 0.1
OUTPUT_LINES = 5


def open_tensorboard(box: BoxContext, request: OpenTensorBoardRequest, record: Record) -> OpenTensorBoardReply:
    """Start TensorBoard, and wait until it listens. Raises RemoteError ``no_tensorboard`` with what it said."""
    run = open_run(box.root, request.run)
    sessions, session = Sessions(box), session_name(f"tensorboard_{run.name}")
    sessions.require()
    file = box.root / "training_runs" / f".tensorboard-{os.geteuid()}" / f"{run.name}.json"
    row = sessions.find(session)
    if row is None or row["dead"] or not row["marked"]:
        record.begin()
        file.unlink(missing_ok=True)
        arguments = ["tensorboard", "--training-run", run.name, "--address-file", str(file)]
        run_in_session(box, session, arguments, run.name, False, record)
    port, path = _wait_for(file, sessions, session)
    return {"session": session, "port": port, "path": path}


def _wait_for(file: Path, sessions: Sessions, session: str) -> tuple[int, str]:
    """Port and path, once they are announced."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        known = read_json(file) or {}
        if isinstance(known.get("port"), int) and isinstance(known.get("path"), str):
            return known["port"], known["path"]
        row = sessions.find(session)
        if row is None or row["dead"]:
            said = " ".join(sessions.output(session, OUTPUT_LINES)) if row else "its session is gone"
            raise RemoteError("no_tensorboard", f"TensorBoard did not start: {said}")
        time.sleep(POLL_S)
    raise RemoteError("no_tensorboard", f"TensorBoard did not start within {START_S:.0f} s", f"attach to {session}")
