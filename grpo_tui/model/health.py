"""Health of a run over its steps: which conditions hold now and since when, and which held before. No Textual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from grpo_tui.model.formatting import one_line

CONDITIONS_KEPT = 64
RECORDS_KEPT = 16
"""Per row."""
MESSAGE_LENGTH = 600
CODE_LENGTH = 64

_TONES = {"alarm": "bad", "warning": "warn"}
_WITHOUT_NUMBERS = str.maketrans("", "", "0123456789.,%+-")


def tone_of_level(level: object) -> str:
    """``bad``, ``warn`` or ``muted``."""
    return _TONES.get(str(level), "muted")


def records_of(health: object) -> list[dict[str, Any]]:
    """The usable records of a row's ``health``, worst first: ``code``, ``level`` and a bounded one-line ``message``."""
    records = []
    for entry in health[:RECORDS_KEPT] if isinstance(health, list) else ():
        if isinstance(entry, dict) and (message := one_line(str(entry.get("message") or "")[:MESSAGE_LENGTH])):
            code, level = str(entry.get("code") or "")[:CODE_LENGTH], str(entry.get("level") or "")[:CODE_LENGTH]
            records.append({"code": code, "level": level, "message": message})
    return records


@dataclass(frozen=True)
class Condition:
    """One health condition, with its latest message."""

    level: str
    message: str
    since: int
    """First step of the unbroken stretch up to ``last``."""
    last: int
    first: int
    steps: int = 1
    """Number of steps that reported it."""

    @property
    def tone(self) -> str:
        return tone_of_level(self.level)


class Health:
    """Conditions by code. Takes the rows of the log in order."""

    def __init__(self) -> None:
        self.is_logged = False
        """Whether the newest row has a ``health`` field, empty or not."""
        self._known: dict[str, Condition] = {}
        self._now: list[str] = []

    @property
    def now(self) -> list[Condition]:
        """Conditions of the newest row, worst first."""
        return [self._known[kind] for kind in self._now]

    @property
    def past(self) -> list[Condition]:
        """Alarms and warnings that no longer hold, latest first."""
        over = [one for kind, one in self._known.items() if kind not in self._now and one.tone != "muted"]
        return sorted(over, key=lambda one: -one.last)

    @property
    def tone(self) -> str:
        """Tone of the worst condition that holds now; ``muted`` without one."""
        return self.now[0].tone if self._now else "muted"

    def take(self, step: int, health: object) -> None:
        """Take the ``health`` field of the next row (None if the row has none)."""
        self.is_logged = isinstance(health, list)
        before, self._now = self._now, []
        for record in records_of(health):
            kind = _kind(record)
            if kind in self._now:
                continue
            new = Condition(str(record["level"]), record["message"], step, step, step)
            old = self._known.pop(kind, None)  # reinserted last: the oldest entry is dropped first
            if old is not None:
                since = old.since if kind in before else step
                new = replace(new, since=since, first=old.first, steps=old.steps + 1)
            self._known[kind] = new
            self._now.append(kind)
        while len(self._known) > CONDITIONS_KEPT:
            del self._known[next(iter(self._known))]


def _kind(record: dict[str, Any]) -> str:
    """Identity of a condition: its code. A record of format 1 has none: its message without the moving numbers."""
    return str(record["code"] or record["message"].partition("(")[0].translate(_WITHOUT_NUMBERS))
