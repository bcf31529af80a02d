"""The error of a stage that failed, from what its processes left behind. Torch-free."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_json

MAX_LINE, MAX_TRACEBACK = 4_000, 200_000
"""Characters kept of each line and of a traceback: a ``status.json`` that is too large is not read."""

ERROR = "error: "
"""How a command begins the line that says why it failed."""


def clear_reports(run: RunDir) -> None:
    """Remove the failure reports of earlier stages."""
    for stale in (run.path / "control").glob("error_*.json"):
        stale.unlink(missing_ok=True)


def has_failed_elsewhere(run: RunDir, meeting: str) -> bool:
    """Whether another machine has reported a failure in a meeting (``error_WHAT.MEETING.HOST.json``)."""
    return any((run.path / "control").glob(f"error_*.{meeting}.*.json"))


def failure(
    run: RunDir,
    pid: int,
    exit_code: int,
    nproc: int,
    console_tail: list[str],
    process: str = "training process",
    meeting: str = "",
) -> dict[str, Any]:
    """Error of a failed stage: rank and signal, or the exception, with the last console lines.

    ``process`` names it in the message. ``pid`` and ``exit_code`` are those of the process that the supervisor started.
    ``meeting``: that of several machines; they may still write reports of an earlier one.
    """

    def files(of: str) -> list[Path]:
        found = sorted((run.path / "control").glob(f"{of}*.json"))
        return [file for file in found if not meeting or file.name.count(".") == 1 or f".{meeting}." in file.name]

    reported = [read_json(file) or {} for file in files("error_torchrun")]
    failures = [failure for report in reported for failure in report.get("failures", [])]
    if nproc == 1 and exit_code < 0:
        failures = [{"rank": 0, "pid": pid, "exit_code": exit_code, "signal": signal.Signals(-exit_code).name}]
    # A rank killed by a signal is the cause. Ranks that failed in a collective afterwards, or got torchrun's
    # SIGTERM, are not.
    killed = [f for f in failures if f["exit_code"] < 0 and f["signal"] != "SIGTERM"]
    written = [*files("error_node"), *files("error_rank")]
    reports = [report for path in written if (report := read_json(path))]
    error: dict[str, Any] = {
        "code": "internal",
        "rank": None,
        "signal": None,
        "exit_code": exit_code,
        "exception": "",
        "traceback": "",
    }
    if killed:
        first = killed[0]
        hint = " (often: out of memory)" if first["signal"] == "SIGKILL" else ""
        error |= {"rank": first["rank"], "signal": first["signal"], "pid": first["pid"]}
        error["summary"] = f"rank {first['rank']} (pid {first['pid']}) was killed by {first['signal']}{hint}"
    elif reports:
        first = min(reports, key=lambda report: str(report["time"]))
        error |= {
            "rank": first["rank"],
            "exception": first["message"][:MAX_LINE],
            "traceback": first["traceback"][-MAX_TRACEBACK:],
            "code": first.get("code", "internal"),
        }
        has_rank = nproc > 1 and first["rank"] is not None
        error["summary"] = f"rank {first['rank']}: {first['message']}" if has_rank else first["message"]
    else:
        said = next((line for line in reversed(console_tail) if line.startswith(ERROR)), "")
        error["summary"] = said.removeprefix(ERROR) or f"the {process} ended with exit code {exit_code}"
    error["summary"] = error["summary"][:MAX_LINE]
    return {**error, "console_tail": console_tail}
