"""The steps of a run that have completions: a part without gaps, which grows where the reader goes. No Textual."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import LIVE_S, SOON_S, Asking
from remote.protocol.index import StepTable

PAGE = 1_000
"""Steps of one request."""
NEAR = 100
"""Steps from the end of the part that is known to the cursor at which more are requested."""


class StepsKey(NamedTuple):
    """A request for the steps of a range."""

    kind: str
    """``all`` (what is known, anew), ``newer``, ``page`` (next to what is known) or ``jump``."""
    low: int | None
    high: int | None = None


class StepRow(NamedTuple):
    """A step with completions."""

    step: int
    samples: int
    reward: float | None
    """Mean; None without a reward."""
    groups: int
    signal: int
    """Groups whose rewards differ."""


class RolloutSteps:
    """The table of steps, and what is to be asked of the box for it."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.rows: list[StepRow] = []
        """In order, without gaps once the index is whole."""
        self.first: int | None = None
        """First and last step of the file; None without one."""
        self.last: int | None = None
        self.total = 0
        self.skipped = 0
        """Lines of the file that cannot be read."""
        self.progress = 0.0
        self.is_coarse = True
        self.is_known = False
        """Whether the box has answered."""
        self.version = 0
        self.asking = Asking(now)
        self._renew = False
        self._wanted: StepsKey | None = None

    # questions -----------------------------------------------------------------------------------------

    def place(self, step: int) -> int:
        """Index of the last row that is not after a step; 0 if there is none."""
        return max(0, bisect_left(self.rows, step + 1, key=lambda row: row.step) - 1)

    def row(self, step: int) -> StepRow | None:
        index = self.place(step)
        return self.rows[index] if self.rows and self.rows[index].step == step else None

    # requests ------------------------------------------------------------------------------------------

    def invalidate(self) -> None:
        """The file may have changed before its end: ask anew for what is known."""
        self._renew = True

    def look_at(self, step: int) -> None:
        """Request the rows around a step if they are not known."""
        if self.is_coarse or not self.rows or self.first is None or self.last is None:
            return
        low, high = self.rows[0].step, self.rows[-1].step
        place = self.place(step)
        self._wanted = None
        if not low - PAGE <= step <= high + PAGE:
            self._wanted = StepsKey("jump", step - PAGE // 2, step + PAGE // 2)
        elif place < NEAR and low > self.first:
            self._wanted = StepsKey("page", low - PAGE, low - 1)
        elif place >= len(self.rows) - NEAR and high < self.last:
            self._wanted = StepsKey("page", high + 1, high + PAGE)

    def request(self, newest: int, is_live: bool) -> StepsKey | None:
        """The request to send now; ``newest`` is about the last step of the run."""
        every: float | None = None
        if self.is_coarse or self._renew or not self.rows:
            low = self.rows[0].step if self.rows else (newest if self.last is None else self.last) - PAGE
            key = StepsKey("all", low if low > 0 else None)
            every = SOON_S if self.is_known and self.is_coarse else LIVE_S if is_live else None
            if self._renew and not self.is_coarse:
                every = 0.0
        elif self._wanted is not None:
            key = self._wanted
        else:
            key, every = StepsKey("newer", self.rows[-1].step if self._is_at_end else self.last), LIVE_S
            if not is_live or not self.asking.is_due(every):
                return None
        return key if self.asking.begin(key, every) else None

    @property
    def _is_at_end(self) -> bool:
        return bool(self.rows) and self.rows[-1].step == self.last

    def answer(self, key: StepsKey, reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``rollout_steps``."""
        if not self.asking.end(key):
            return
        was_at_end = self._is_at_end
        self.is_known, self.version = True, self.version + 1
        self.is_coarse, self.progress = reply["state"] != "whole", reply["progress"]
        self.total, self.skipped = int(reply["total"]), int(reply["skipped"])
        self.first, self.last = (
            None if reply[name] is None else int(reply[name]) for name in ("first_step", "last_step")
        )
        found = _rows(reply["table"])
        if key.kind in ("all", "jump"):
            self.rows, self._renew = found, False
        elif key.kind == "page":
            is_before = self.rows and found and found[0].step < self.rows[0].step
            self.rows = found + self.rows if is_before else self.rows + found
        elif was_at_end and found:
            is_next = found[0].step == self.rows[-1].step  # else more are new than fit into a reply
            self.rows = self.rows[:-1] + found if is_next else found
        if key == self._wanted:
            self._wanted = None

    def fail(self, key: StepsKey, problem: str) -> None:
        """The box did not answer."""
        self.asking.end(key, problem)
        self.version += 1


class EvaluationSteps(RolloutSteps):
    """The evaluated steps of a run: they are in what the box says about the run, and nothing is asked for."""

    def look_at(self, step: int) -> None:
        pass

    def request(self, newest: int, is_live: bool) -> StepsKey | None:
        return None

    def set(self, rows: list[StepRow]) -> None:
        """The steps, in order."""
        if rows != self.rows or not self.is_known:
            self.rows, self.total, self.is_coarse, self.is_known = rows, len(rows), False, True
            self.first, self.last = (rows[0].step, rows[-1].step) if rows else (None, None)
            self.version += 1


def evaluation_names(shown: Mapping[str, Any]) -> list[str]:
    """The evaluations with results in a ``show_run`` reply."""
    return [str(one["name"]) for one in shown.get("evaluations") or () if evaluated_steps(shown, one["name"])]


def evaluated_steps(shown: Mapping[str, Any], name: str) -> list[StepRow]:
    """The steps of an evaluation that have results, in order, with their accuracy."""
    rows = {}
    for one in shown.get("evaluations") or ():
        for row in (one.get("metrics") or ()) if one["name"] == name else ():
            step, accuracy = _figure(row.get("step")), _figure(row.get("accuracy"))
            if step is not None and step >= 0 and accuracy is not None:
                rows[int(step)] = StepRow(int(step), int(_figure(row.get("n")) or 0), accuracy, 0, 0)
    return [rows[step] for step in sorted(rows)]


def _figure(cell: Any) -> float | None:
    """The number in a cell of a table, which is text."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if abs(value) < 1e15 else None


def _rows(table: StepTable) -> list[StepRow]:
    columns = zip(table.step, table.samples, table.scored, table.reward, table.groups, table.signal, strict=True)
    return [
        StepRow(int(step), int(samples), reward if scored else None, int(groups), int(signal))
        for step, samples, scored, reward, groups, signal in columns
    ]
