"""What happened to a run: stops, crashes, evaluations, health, tracking; and the rules of alarms. No Textual.

Events come from the whole ``events.jsonl``, which is followed, and from the evaluations of ``show_run``. No Textual.
"""

from __future__ import annotations

import math
import operator
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from grpo_train.run_dir.display import AGENT, CHANGE, CRASH, EVALUATION, LEVEL, RESUME, STOP, setting
from grpo_tui.box.formatting import one_line
from grpo_tui.box.rows import EvalResult, evaluated_steps

BELL, OSC_9, OSC_777 = "bell", "osc9", "osc777"
WAYS = (BELL, OSC_9, OSC_777)
"""Signals that a terminal can get."""
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_RULE = re.compile(r"\s*(\S+?)\s*(<=|>=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True)
class AlarmRule:
    """An alarm while a metric is on one side of a limit."""

    metric: str
    operator: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> AlarmRule:
        """Read ``METRIC < NUMBER``, also with ``<= > >=``. Raises ValueError."""
        match = _RULE.fullmatch(text)
        try:
            limit = float(match[3]) if match else math.nan
        except ValueError:
            limit = math.nan
        if match is None or not math.isfinite(limit):
            raise ValueError(f"'{text}' is not a rule; write METRIC < NUMBER, with < <= > or >=, as in ess/token < 0.5")
        return cls(match[1], match[2], limit)

    def is_broken(self, value: float | None) -> bool:
        """Whether a value is an alarm; NaN is one for every rule."""
        return value is not None and (value != value or bool(_OPERATORS[self.operator](value, self.limit)))

    @property
    def words(self) -> str:
        """``alarm below 0.5``"""
        return f"alarm {'below' if self.operator[0] == '<' else 'above'} {self.limit:g}"

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.limit:g}"


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
        is_why = name == "by_assistant" and row.get("op") == "stop"
        if is_why and self._asked:  # of the stop that the row before it asks for
            self.events.pop()
        self._asked = text if name == "stop_asked" or is_why else ""
        self.events.append(RunEvent(sign, step, at, text[:TEXT_LENGTH], offset))


_BY_ASSISTANT = {
    "stop": (STOP, "stop requested"), "resume": (RESUME, "resume requested"), "launch": (AGENT, "launched"),
    "evaluate": (AGENT, "evaluation requested"), "back_up": (AGENT, "backup requested"),
}  # fmt: skip


def _sign_and_text(name: str, step: int, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The sign and the words of a row; None for one that is not on the axis."""
    if name in ("crashed", "killed"):
        error = row.get("error")
        summary = one_line(str(error.get("summary") or "")) if isinstance(error, Mapping) else ""
        return CRASH, f"{name}: {summary}" if summary else name
    if name == "stop_asked":
        return STOP, "stop requested" + (f" by {one_line(str(row['by']))}" if row.get("by") else "")
    if name == "by_assistant":
        op = one_line(str(row.get("op") or ""))
        why = one_line(str(row.get("why") or ""))
        sign, words = _BY_ASSISTANT.get(op, (AGENT, op))
        return sign, f"{words} by an agent" + (f": {why}" if why else "")
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
    text = one_line(setting(value))
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


MAX_URL = 500


@dataclass(frozen=True)
class TrackedRun:
    """How a run is tracked, as far as its events say."""

    run: str
    asked: str = ""
    """``tracking.wandb`` of its config: ``off``, ``offline``, ``online`` or ``auto``; "" = not known."""
    mode: str = ""
    """``online`` or ``offline`` since it was sent; "" = nothing was sent while it ran."""
    url: str = ""
    """Its page in W&B; "" offline."""
    at: str = ""
    """When it was opened last."""
    error: str = ""
    """Why W&B lacks something, unless it was opened again since."""
    failed_at: str = ""
    failed_mode: str = ""
    """``online`` or ``offline`` where it failed."""

    @property
    def state(self) -> str:
        """One word for a line."""
        if self.error:
            return "failed"
        return self.mode or ("off" if self.asked in ("", "off") else "not sent")

    @property
    def command(self) -> str:
        """What sends it, or the rest of it, at any time."""
        mode = " --mode offline" if (self.failed_mode or self.mode or self.asked) == "offline" else ""
        return f"grpo-train track --training-run {self.run}{mode}"


def tracking_of(run: str, events: Iterable[Mapping[str, Any]], asked: Any = None) -> TrackedRun:
    """From the events of a run, in order, and ``tracking.wandb`` of its config."""
    found: dict[str, str] = {}
    for event in events:
        at = str(event.get("time") or "")[:19].replace("T", " ")
        if event.get("event") == "tracking":
            url = str(event.get("url") or "")[:MAX_URL]
            is_page = url.startswith(("https://", "http://")) and url.isprintable() and " " not in url
            found = {"mode": one_line(str(event.get("mode") or ""))[:20], "url": url if is_page else "", "at": at}
        elif event.get("event") == "tracking_failed":
            found["failed_mode"] = str(event.get("mode") or "")
            found |= {"error": one_line(str(event.get("error") or "unknown"))[:300], "failed_at": at}
    return TrackedRun(run, str(asked or ""), **found)
