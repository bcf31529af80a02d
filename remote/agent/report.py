"""The report of runs, made by the engine: ``grpo-train report``."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from grpo_train.run_dir import open_run
from remote.agent.context import BoxContext
from remote.agent.engine import USAGE_ERROR, find_engine, last_line, run_engine
from remote.protocol import RemoteError
from remote.protocol.report import MAX_PAGE, ReportReply, ReportRequest, pack_page

WAIT_S = 150.0


def report(box: BoxContext, request: ReportRequest) -> ReportReply:
    """Raises RemoteError ``no_report`` with what the engine said."""
    names = [open_run(box.root, run).name for run in request.runs]
    with tempfile.TemporaryDirectory(prefix="grpo-report-") as folder:
        file = Path(folder) / "report.html"
        argv = [*find_engine(box).argv, "report", "--root", str(box.root), "-o", str(file)]
        if request.price is not None:
            argv += ["--price", f"{request.price:.15g}"]
        try:
            done = run_engine(box, [*argv, "--", *names], WAIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RemoteError("no_report", f"the engine did not make the report: {error}") from error
        if done.returncode == USAGE_ERROR:
            hint = "update it to the version of the app"
            raise RemoteError("no_report", "the engine on this box is too old to make a report", hint)
        if done.returncode or not file.is_file():
            raise RemoteError(
                "no_report", f"the engine did not make the report: {last_line(done).removeprefix('error: ')}"
            )
        if file.stat().st_size > MAX_PAGE:
            raise RemoteError("too_large", f"the report has {file.stat().st_size:,} bytes; compare fewer runs")
        return {"page": pack_page(file.read_bytes())}
