"""What happened to a run: stops, resumes, changed configurations, crashes, evaluations, for the axis of its charts.

Events come from the whole ``events.jsonl``, which is followed, and from the evaluations of ``show_run``. No Textual.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_tui.model.checkpoints import EvalResult, evaluated_steps
from grpo_tui.model.formatting import one_line

CRASH, CHANGE, RESUME, STOP, LEVEL, EVALUATION = "✖", "C", "R", "S", "L", "◆"
WORDS = {
    CRASH: "crash or kill", CHANGE: "changed config", RESUME: "resume", STOP: "stop", LEVEL: "level raised",
    EVALUATION: "held-out evaluation",
}  # fmt: skip
"""The signs on the axis, the one that matters most first, and what they mean."""
SEVERAL = "+"
NOT_FINITE = "×"
"""NaN or an infinite value of the chart's own metric."""
ENDS = ("stopped", "killed", "crashed", "finished")
MOST = 1_000
"""Events that are kept; of more, the newest."""
TEXT_LENGTH = 1_000
VALUE_LENGTH = 60


@dataclass(frozen=True)
class RunEvent:
    """One event."""

    sign: str
    step: int
    at: float | None
    """Time on the box's clock; None = that of the step."""
    text: str
    offset: int | None = None
    """Of its row in ``events.jsonl`` …"""
    evaluation: str = ""
    """… or the name of the evaluation."""
    accuracy: float | None = None
    """What the evaluation found, 0 … 1."""


class Pause(NamedTuple):
    """A time in which the run did not train."""

    start: float | None
    """When it had ended; None if no event says so, as of a box that died or an evaluation between two stages."""
    end: float
    """When it trained again."""


class RunEvents:
    """The events of one run. Takes the rows of ``events.jsonl`` in order."""

    def __init__(self) -> None:
        self.events: deque[RunEvent] = deque(maxlen=MOST)
        self.pauses: deque[Pause] = deque(maxlen=MOST)
        self._ended_at: float | None = None
        self._asked = ""
        """Who asked for a stop that has not come."""

    def take(self, offset: int, step: int | None, at: float | None, row: Mapping[str, Any]) -> None:
        """Take the next row, with its step and time; one that cannot be understood is left out."""
        name = row.get("event")
        if not isinstance(name, str) or step is None or step < 0:
            return
        found = _sign_and_text(name, step, row)
        if name == "training":
            if at is not None and (step or self._ended_at is not None):
                self.pauses.append(Pause(self._ended_at, at))
            self._ended_at = None
        elif name in ENDS:
            self._ended_at = at
            if self._asked:  # the end says more
                self.events.pop()
                if name == "stopped":
                    found = STOP, f"stopped, {self._asked}"
        if found is None:
            return
        sign, text = found
        self._asked = text if name == "stop_asked" else ""
        self.events.append(RunEvent(sign, step, at, text[:TEXT_LENGTH], offset))


def _sign_and_text(name: str, step: int, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The sign and the words of a row; None for one that is not on the axis."""
    if name in ("crashed", "killed"):
        error = row.get("error")
        summary = one_line(str(error.get("summary") or "")) if isinstance(error, Mapping) else ""
        return CRASH, f"{name}: {summary}" if summary else name
    if name == "stop_asked":
        return STOP, "stop requested" + (f" by {one_line(str(row['by']))}" if row.get("by") else "")
    if name == "stopped":
        return STOP, "stopped"
    if name == "level_raised":
        return LEVEL, f"{_short(row.get('task'))}: level {_short(row.get('level'))}"
    if name == "stalled":
        return CRASH, "stalled: no sign of life"
    if name == "restarted":
        return RESUME, "restarted after a crash"
    if name == "resumed":
        changes = changed(row.get("changes"))
        text = f"resumed from step {step:,}"
        return (CHANGE, f"{text}, {changes}") if changes else (RESUME, text)
    return None


def changed(changes: object) -> str:
    """``optimizer.learning_rate 1e-06 → 2e-06, …`` of a resume; "" if it only has more steps, or nothing changed."""
    found = []
    for key, pair in changes.items() if isinstance(changes, Mapping) else ():
        if isinstance(pair, list) and len(pair) == 2 and key != "run.total_steps":
            before, after = (_short(value) for value in pair)
            found.append(f"{one_line(str(key))} {before} → {after}")
    return ", ".join(found)


def _short(value: object) -> str:
    text = one_line(str(value))
    return text if len(text) <= VALUE_LENGTH else text[: VALUE_LENGTH - 1] + "…"


def evaluation_events(run: str, reply: Mapping[str, Any]) -> list[RunEvent]:
    """The evaluated steps of a ``show_run`` reply."""
    found = evaluated_steps(run, reply)
    return [
        RunEvent(EVALUATION, step, None, _said(result), evaluation=name, accuracy=result.accuracy)
        for name, step, result in found
    ]


def _said(result: EvalResult) -> str:
    spread = f" ±{result.spread}" if result.spread else ""
    return f"evaluated on {result.dataset}: {result.figure}{spread}"
