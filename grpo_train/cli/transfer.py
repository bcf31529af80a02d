"""What the commands of backups share: options, exit codes, progress on a terminal, sizes and ages for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_train.backup.backup_yaml import parse_rate
from grpo_train.backup.destinations import Destination, open_destination
from grpo_train.backup.job import OnProgress
from grpo_train.backup.job import Progress as ProgressRow
from grpo_train.backup.snapshot import Omitted
from grpo_train.cli.output import on_terminal
from grpo_train.run_dir.clock import CLOCK
from grpo_train.run_dir.errors import UserError, code_of, message_of
from grpo_train.run_dir.machine import give_way

To = Annotated[str | None, typer.Option("--to", help="Destination in backup.yaml (default: the first).")]
From = Annotated[str | None, typer.Option("--from", help="Destination in backup.yaml (default: the first).")]
Transfers = Annotated[int, typer.Option(min=1, max=64, help="Number of objects transferred at once.")]
Limit = Annotated[str | None, typer.Option(help="Maximum bytes per second, e.g. 40M.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

DONE, FAILED, USAGE, PARTLY = 0, 1, 2, 3

TRY_AGAIN = frozenset(
    {"unreachable", "full", "damaged", "missing", "changed", "busy", "disk_full", "io", "read_only", "internal"}
)
"""Codes of failures that a rerun may not meet; all others need a change first."""


@contextmanager
def failing(as_json: bool) -> Iterator[None]:
    """Print an expected failure, as JSON too, and exit with its code."""
    try:
        yield
    except (UserError, OSError) as error:
        code = code_of(error)
        text = message_of(error)
        if as_json:
            print(json.dumps({"error": {"code": code, "message": text}}))
        print(f"error: {text}", file=sys.stderr)
        raise typer.Exit(FAILED if code in TRY_AGAIN else USAGE) from None


def opened(
    name: str | None,
    root: Path,
    *,
    write: bool = True,
    limit: str | None = None,
    transfers: int = 4,
    is_training: bool = False,
) -> Destination:
    """A destination for a command. One that writes gives way to training on this machine. Raises UserError."""
    if write:  # not a restore, which may resume the run in this process
        give_way()
    rate = parse_limit(limit) if limit else None
    return open_destination(
        name,
        root,
        write=write,
        limit=rate,
        is_training=is_training,
        transfers=transfers,
        on_wait=_Waits(),
        clock=CLOCK,
    )


class _Waits:
    """Names on stderr why requests to a store are repeated: the same cause every 30 s, not once a thread."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def __call__(self, cause: str, seconds: float) -> None:
        now = CLOCK.monotonic()
        if now - self._said.get(cause, -math.inf) >= 30:
            self._said[cause] = now
            print(f"waiting: {cause}; trying again for up to 10 min", file=sys.stderr)


def parse_limit(text: str) -> int:
    """Bytes per second of ``--limit``. Raises UserError."""
    try:
        return parse_rate(text)
    except ValueError as error:  # 5x
        raise UserError(f"--limit: {error}", code="bad_option") from None


def confirm(yes: bool, question: str) -> None:
    """Ask on a terminal; elsewhere ``--yes`` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        print("error: nothing was removed; add --yes to confirm", file=sys.stderr)
        raise typer.Exit(USAGE)
    if not typer.confirm(question, default=False):
        raise typer.Exit(USAGE)


def print_json(value: Any) -> None:
    """Print a dataclass, or a list of them, as JSON."""
    rows = [asdict(row) for row in value] if isinstance(value, (list, tuple)) else value
    print(json.dumps(asdict(rows) if is_dataclass(rows) and not isinstance(rows, type) else rows, indent=1))


def print_omitted(omitted: Sequence[Omitted]) -> None:
    """Name on stderr what a command left out."""
    for each in omitted:
        print(f"warning: {each.path}: {each.reason}", file=sys.stderr)


@contextmanager
def progress_shown(enabled: bool = True) -> Iterator[OnProgress | None]:
    """Progress of a transfer on a terminal; elsewhere its ``progress.jsonl`` shows it."""
    if not (enabled and on_terminal()):
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(now: ProgressRow) -> None:
            done = now.proven if now.phase == "proving" else now.bytes
            what = f"{now.run} {now.phase} {now.what[-48:]}"
            bars.update(task, description=what, completed=done, total=now.bytes_total or None)

        yield show


def size_text(size: float) -> str:
    """``1.4 GB``: bytes in units of 1,000."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    for unit in units:
        if size < 1000 or unit == units[-1]:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def age_text(seconds: float) -> str:
    """``2 d``, ``3 h 12 m``, ``5 m``, ``now``."""
    minutes = int(seconds // 60)
    if minutes >= 48 * 60:
        return f"{minutes // 1440} d"
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} m"
    return f"{minutes} m" if minutes else "now"
