"""Reads the runs that are in backups into the history: this machine's engine looks into the destinations of its
``backup.yaml``, and fetches small files only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from grpo_train.history.database import Database, is_store
from grpo_train.history.news import news_from
from grpo_train.run_dir.errors import UserError

DESCRIBE_S = 60.0
READ_S = 3600.0
"""The engine gives up on a store that does not answer after 10 minutes; many runs take longer."""


def rebuild_stores(database: Database, say: Callable[[str], None], only: list[str] | None = None) -> list[str]:
    """Read every destination of this machine, or some by name; returns what could not be read, with the reason."""
    problems = []
    try:
        names = only or [str(row["name"]) for row in _ask(["destinations"], DESCRIBE_S)[0]]
    except UserError as error:
        return [f"backups: {error}"]
    for name in names:
        try:
            rows, warnings = _ask(["history", "--from", name, "--records"], READ_S)
            news = [news_from(row, name, str(row["root"])) for row in rows if is_store(str(row["root"]))]
        except UserError as error:
            problems.append(f"backups in {name}: {error}")
            continue
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"backups in {name}: the engine printed something unexpected ({error})")
            continue
        database.write(news)
        problems += [f"backups in {name}: {warning}" for warning in warnings]
        say(f"backups in {name}: {len(news)} runs read")
    return problems


def _ask(arguments: list[str], wait_s: float) -> tuple[list[dict[str, Any]], list[str]]:
    """The list that an engine's command prints as JSON, and its warnings. Raises UserError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grpo_train.cli", *arguments, "--json"],
            capture_output=True, text=True, errors="replace", timeout=wait_s, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"grpo-train {arguments[0]} did not answer within {wait_s:.0f} s", code="no_answer") from None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    warnings = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if done.returncode not in (0, 3) or not isinstance(found, list):
        reason = lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}"
        raise UserError(reason, code="no_answer")
    return found, warnings
