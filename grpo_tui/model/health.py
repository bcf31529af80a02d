"""What the engine has said of a run's health: which sentences hold now, since when, and which held before. No Textual.

A sentence carries figures that move (``effective sample size 42% …``, then ``41% …``): without them it is the same one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from grpo_tui.model.formatting import one_line

KINDS_KEPT = 64
SENTENCES_KEPT = 16
"""Of one row."""
SENTENCE_LENGTH = 600

_NUMBER = re.compile(r"[-+]?\d[\w.,%+-]*")
_TONES = {"alarm": "bad", "warning": "warn"}


def tone_of(sentence: str) -> str:
    """``bad``, ``warn`` or ``muted``, by the sentence's first word."""
    return _TONES.get(sentence.partition(":")[0], "muted")


def sentences_of(said: object) -> list[str]:
    """The sentences in a row's ``health``, worst first; none where it holds anything else."""
    if not isinstance(said, list):
        return []
    return [one_line(line[:SENTENCE_LENGTH]) for line in said[:SENTENCES_KEPT] if isinstance(line, str) and line]


@dataclass(frozen=True)
class Condition:
    """One thing the engine has said, in its latest words."""

    sentence: str
    since: int
    """The step from which on every step has said it."""
    last: int
    first: int
    steps: int = 1
    """How many steps have said it."""

    @property
    def tone(self) -> str:
        return tone_of(self.sentence)


class Health:
    """Takes each row's sentences in the order of the log."""

    def __init__(self) -> None:
        self.is_logged = False
        """Whether the newest row says anything of its health, be it that nothing stands out."""
        self._known: dict[str, Condition] = {}
        self._now: list[str] = []

    @property
    def now(self) -> list[Condition]:
        """What the newest row says, worst first."""
        return [self._known[kind] for kind in self._now]

    @property
    def past(self) -> list[Condition]:
        """Alarms and warnings that hold no more, the latest first."""
        over = [one for kind, one in self._known.items() if kind not in self._now and one.tone != "muted"]
        return sorted(over, key=lambda one: -one.last)

    @property
    def tone(self) -> str:
        """``bad`` or ``warn`` where the newest row says so, else ``muted``."""
        return self.now[0].tone if self._now else "muted"

    def take(self, step: int, said: object) -> None:
        """The ``health`` of the next row (None where it has none)."""
        self.is_logged = isinstance(said, list)
        before, self._now = self._now, []
        for sentence in sentences_of(said):
            kind = _NUMBER.sub("#", sentence.partition("(")[0])
            if kind in self._now:
                continue
            old = self._known.pop(kind, None)  # put last again: the dict is in the order of the last word
            new = Condition(sentence, step, step, step)
            if old is not None:
                since = old.since if kind in before else step
                new = replace(new, since=since, first=old.first, steps=old.steps + 1)
            self._known[kind] = new
            self._now.append(kind)
        while len(self._known) > KINDS_KEPT:
            del self._known[next(iter(self._known))]
