"""The app, recording what it receives of each log, so that a test can compare it with the files byte for byte."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from grpo_tui.box.link import Connection
from grpo_tui.cli import main
from remote.events import ClientEvent, LogArrived

REPO = Path(__file__).resolve().parents[2]


def make_command(folder: Path, report: Path) -> Path:
    """An executable that runs the app and, when it exits, writes start, end and SHA-256 of each log to ``report``."""
    command = folder / "recording-grpo-tui"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPO)!r})\n"
        f"from tests.support.recording_app import run\nsys.exit(run({str(report)!r}))\n"
    )
    command.chmod(0o755)
    return command


def run(report: str) -> int:
    """Run the app with a recording connection; returns its exit code."""
    logs: dict[str, dict[str, Any]] = {}
    take = Connection.take

    def record(connection: Connection, event: ClientEvent) -> None:
        if isinstance(event, LogArrived):
            log = logs.setdefault(event.path, {"start": event.offset, "end": event.offset, "sha256": hashlib.sha256()})
            assert event.offset == log["end"], f"{event.path}: bytes from {event.offset}, expected {log['end']}"
            log["sha256"].update(event.data)
            log["end"] += len(event.data)
        take(connection, event)

    Connection.take = record  # type: ignore[method-assign]
    code = main()
    received = {path: {**log, "sha256": log["sha256"].hexdigest()} for path, log in logs.items()}
    Path(report).write_text(json.dumps(received))
    return code
