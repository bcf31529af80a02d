"""Reads the runs that are in backups into the history: the engine of this machine or of a box looks into the
destinations of its ``backup.yaml``, fetches small files only, and answers in pages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.errors import UserError
from grpo_tui.model.asking import ENGINE_S
from remote.protocol import RemoteError
from remote.protocol.rows import UNREADABLE

if TYPE_CHECKING:
    from grpo_train.history.database import Database, News

DESCRIBE_S = 60.0
READ_S = 3600.0
"""The engine gives up on a store that does not answer after 10 minutes; many runs take longer."""
WITHOUT_BACKUPS = ("no_engine", "old_engine")
"""Codes of a box that has no backups, as its engine is missing or does not know them."""


class StorePages:
    """The pages of a destination: what to ask next, from the answers so far."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.params: dict[str, Any] | None = {"source": source}
        """Of the next ``stored_history`` request; None = all pages were answered."""
        self.problems: list[str] = []
        """What could not be read, with the reason."""
        self.identities: set[str] = set()
        """Of the runs that were read."""
        self._known = -1.0

    def take(self, page: Mapping[str, Any]) -> list[News]:
        """Take the answer to ``params``; returns its news. Raises KeyError, TypeError for something else.

        While the engine has no time for all runs of the store, and reads some each time, it is asked for more.
        """
        news = self._news(page["records"])
        self.identities.update(one.identity for one in news)
        if not page["complete"] and page["count"] > self._known:
            self._known = page["count"]
            return news
        self.problems += page["problems"]
        if not page["complete"]:
            self.problems.append("not all runs could be read in time")
        known = (self.params or {}).get("after", "")
        self.params = {"source": self._source, "after": page["next"]} if page["next"] > known else None
        return news

    def _news(self, rows: list[Mapping[str, Any]]) -> list[News]:
        from grpo_train.history.database import is_store
        from grpo_train.history.news import news_from

        found = []
        for row in rows:
            try:
                if UNREADABLE in row:
                    raise ValueError(row[UNREADABLE])
                if is_store(str(row["root"])):  # nobody may speak for the root of a box
                    found.append(news_from(row, self._source, str(row["root"])))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self.problems.append(f"{row.get('name') or row.get('identity')}: unreadable record ({error})")
        return found


def rebuild_stores(database: Database, say: Callable[[str], None], only: list[str] | None = None) -> list[str]:
    """Read every destination of this machine, or some by name; returns what could not be read, with the reason."""
    try:
        names = only or [str(row["name"]) for row in _ask(["destinations"], DESCRIBE_S)]
    except UserError as error:
        return [f"backups: {error}"]

    def ask(params: Mapping[str, Any]) -> dict[str, Any]:
        after = ["--after", params["after"]] if params.get("after") else []
        return dict(_ask(["history", "--from", params["source"], "--records", *after], READ_S))

    return [problem for name in names for problem in _read(database, name, ask, say)]


def rebuild_box_stores(database: Database, ask: Callable[..., dict[str, Any]], say: Callable[[str], None]) -> list[str]:
    """Read every destination of a box; returns what could not be read, with the reason.

    ``ask``: an operation, the seconds to wait for its reply and its parameters → the reply; raises RemoteError.
    """
    try:
        rows = ask("list_destinations", DESCRIBE_S)["destinations"]
    except RemoteError as error:
        return [] if error.code in WITHOUT_BACKUPS else [f"backups: {error.message}"]
    names = [str(row["name"]) for row in rows if UNREADABLE not in row]

    def ask_page(params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return ask("stored_history", ENGINE_S, **params)
        except RemoteError as error:
            raise UserError(f"{error.message}; {error.hint}" if error.hint else error.message) from error

    return [problem for name in names for problem in _read(database, name, ask_page, say)]


def _read(
    database: Database, name: str, ask: Callable[[Mapping[str, Any]], dict[str, Any]], say: Callable[[str], None]
) -> list[str]:
    """Read the pages of a destination. Raises HistoryError."""
    pages = StorePages(name)
    while pages.params is not None:
        try:
            news = pages.take(ask(pages.params))
        except UserError as error:
            return [f"backups in {name}: {problem}" for problem in (*pages.problems, error)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return [f"backups in {name}: the engine printed something unexpected ({error})"]
        database.write(news)
    say(f"backups in {name}: {len(pages.identities)} runs read")
    return [f"backups in {name}: {problem}" for problem in pages.problems]


def _ask(arguments: list[str], wait_s: float) -> Any:
    """What an engine's command prints as JSON. Raises UserError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grpo_train.cli", *arguments, "--json"],
            capture_output=True, text=True, errors="replace", timeout=wait_s, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"grpo-train {arguments[0]} did not answer within {wait_s:.0f} s", code="no_answer") from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if done.returncode not in (0, 3) or found is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}"
        raise UserError(reason, code="no_answer")
    return found
