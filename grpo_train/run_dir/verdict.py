"""The verdict on a run: a word, since when, and the evidence in words. The rules are in ``verdict_rules``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from grpo_train.run_dir.display import fraction, metric_text, percent

VERDICTS = {
    "collapsed": ("▼", "bad"),
    "diverging": ("▼", "bad"),
    "suspicious": ("!", "bad"),
    "no signal": ("∅", "warn"),
    "flat": ("→", "warn"),
    "improving": ("↗", "good"),
    "done": ("✔", "good"),
}
"""Mark and tone of each verdict, the most urgent first."""

HELD_OUT = "held-out"
"""The metric of a verdict by held-out accuracy."""


@dataclass(frozen=True)
class RunVerdict:
    """What a run is like, since which step, and why."""

    word: str
    since: int
    """The first step of which it is true."""
    until: int
    """The step at which the change was complete."""
    metric: str
    before: float
    after: float
    cause: str = ""
    """The event that came before, such as ``learning_rate 1e-4→2e-3``."""
    cause_step: int = 0
    how: str = ""
    """Which way groups are equal; ``not finite`` for a gradient whose ``after`` is its highest finite value;
    ``held-out accuracy holds`` of a reward that fell alone."""

    @property
    def mark(self) -> str:
        return VERDICTS[self.word][0]

    @property
    def tone(self) -> str:
        """``bad``, ``warn`` or ``good``."""
        return VERDICTS[self.word][1]

    @property
    def text(self) -> str:
        """The evidence in one line: ``reward 1.841 ▼ 0.002, steps 41–50, 1 step after learning_rate 1e-4→2e-3``."""
        if self.word == "no signal":
            return f"{self.when}: {self.change}"
        if self.word == "collapsed":
            return f"{self.change}, {self.when}{self.how and f'; {self.how}'}"
        return f"{self.change} {self.when}".rstrip()

    @property
    def change(self) -> str:
        """What changed: ``reward 1.841 ▼ 0.002``."""
        if self.word == "no signal":
            mostly = "" if self.how == "equal" else f", mostly {self.how}"
            return f"{percent(self.after)} of groups score alike{mostly}"
        if self.word == "flat":
            return f"reward {metric_text('reward', self.after)}"
        after = self.how if self.word == "diverging" and self.how else self._text(self.after)
        arrow = "▼" if self.word == "collapsed" or self.metric == HELD_OUT else "→"
        return f"{self.metric} {self._text(self.before)} {arrow} {after}"

    def _text(self, value: float) -> str:
        return fraction(value) if self.metric == HELD_OUT else metric_text(self.metric, value)

    @property
    def when(self) -> str:
        """Since when, and after what: ``steps 41–50, 1 step after learning_rate 1e-4→2e-3``."""
        if self.tone == "good":
            return ""
        since = f"since step {self.since}"
        if self.word == "collapsed":
            since = f"steps {self.since}–{self.until}" if self.until > self.since else f"step {self.since}"
        if self.word == "flat":
            since += ": no change beyond noise"
        if self.word == "suspicious" and self.metric == HELD_OUT:
            since += " while the reward does not fall"
        if not self.cause:
            return since
        steps = self.since - self.cause_step
        distance = f"{steps} step{'s' * (steps != 1)} " if steps > 0 else ""
        return f"{since}, {distance}after {self.cause}"

    @property
    def undone(self) -> str:
        """The cause taken back: ``learning_rate 1e-4`` of ``learning_rate 1e-4→2e-3``; "" where that is not clear."""
        changes = [re.fullmatch(r"(\S+) (.+)→.+", each) for each in self.cause.split(", ")]
        return ", ".join(f"{change[1]} {change[2]}" for change in changes if change) if all(changes) else ""

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` has it; numbers are finite."""
        return {**vars(self), "text": self.text}

    @classmethod
    def from_json(cls, row: Mapping[str, Any] | None) -> RunVerdict | None:
        """Of ``to_json()``; None without one, and for a word of a later version. Raises TypeError, ValueError."""
        if row is None or row.get("word") not in VERDICTS:
            return None
        found = cls(**{one.name: row[one.name] for one in fields(cls) if one.name in row})
        since, until, cause_step = int(found.since), int(found.until), int(found.cause_step)
        values = (float(found.before), float(found.after))
        return replace(found, since=since, until=until, cause_step=cause_step, before=values[0], after=values[1])


def alarm_of(verdict: RunVerdict | None) -> str:
    """The mark of a verdict that is not good; "" of one that is, and without one."""
    return verdict.mark if verdict is not None and verdict.tone != "good" else ""
