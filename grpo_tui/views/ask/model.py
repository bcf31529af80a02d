"""Questions to checkpoints and their answers as they are drawn, from the events of a process on the box. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import monotonic
from grpo_tui.box.log import LineSplitter
from remote.events import LogArrived, LogFailed, LogRotated
from remote.gate import answer_row
from remote.protocol.jobs import MAX_COUNT, MAX_PROMPT

KEPT_QUESTIONS = 50
KEPT_CHARACTERS = 4_000_000
"""Of all answers; the oldest question goes first."""
KEPT_OF_ONE = 40_000
"""Characters of one completion."""
MAX_SAMPLES = 2 * MAX_COUNT


@dataclass
class Drawn:
    """One completion, as far as it is drawn."""

    text: str = ""
    """Its end while it is drawn, then its beginning."""
    characters: int = 0
    """Of all that was drawn."""
    row: Mapping[str, Any] | None = None
    """The event of its end."""

    def add(self, text: str) -> None:
        self.characters += len(text)
        self.text = (self.text + text)[-KEPT_OF_ONE:]

    def end(self, row: Mapping[str, Any]) -> None:
        text = str(row.get("completion") or "")
        self.text, self.row = text[:KEPT_OF_ONE], {key: value for key, value in row.items() if key != "completion"}
        self.characters = max(len(text), int(to_float(row.get("characters")) or 0))


@dataclass
class AnsweredQuestion:
    """One question and its answers."""

    id: str
    question: str
    count: int = 1
    index: int | None = None
    """Number of a held-out problem."""
    gold: str = ""
    problems: list[str] = field(default_factory=list)
    is_done: bool = False
    drawn: dict[tuple[str, int], Drawn] = field(default_factory=dict)
    """By checkpoint and number of the sample."""

    @property
    def characters(self) -> int:
        return sum(len(each.text) for each in self.drawn.values())

    def at(self, row: Mapping[str, Any]) -> Drawn:
        """The completion of an event."""
        place = (str(row.get("checkpoint")), _sample(row))
        if place not in self.drawn and len(self.drawn) >= MAX_SAMPLES:
            return Drawn()  # more than was asked for
        return self.drawn.setdefault(place, Drawn())


def _sample(row: Mapping[str, Any]) -> int:
    value = row.get("sample")
    return value if isinstance(value, int) else 0


class AskLog:
    """What a process has said: whether it is ready, and the questions that it was asked."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.now = now
        self.since = now()
        """When the state was reached."""
        self.state = "starting"
        """``starting``, ``loading``, ``ready``, ``failed`` or ``ended``."""
        self.code = self.message = ""
        """Why it failed or ended."""
        self.checkpoints: list[str] = []
        self.device = ""
        self.asked: list[AnsweredQuestion] = []
        self.version = 0
        self._splitter = LineSplitter()

    @property
    def is_over(self) -> bool:
        return self.state in ("failed", "ended")

    @property
    def answering(self) -> AnsweredQuestion | None:
        """The question that is being answered."""
        return None if self.is_over else next((asked for asked in self.asked if not asked.is_done), None)

    def take(self, event: LogArrived | LogRotated | LogFailed) -> None:
        """Apply what arrived of the file of events."""
        if isinstance(event, LogArrived):
            for _, line in self._splitter.feed(event.offset, event.data):
                if (row := answer_row(line)) is not None:
                    self._apply(row)
        elif isinstance(event, LogFailed):
            self.end("ended", event.message)

    def end(self, state: str, message: str, code: str = "") -> None:
        """The process is over."""
        self.message, self.code = message, code
        self._turn(state)

    def expect(self, id: str, question: str, count: int, index: int | None) -> None:
        """Show a question that was sent, before its first event."""
        if self._of(id) is None:
            self._append(AnsweredQuestion(id, question, count, index))

    def drop_unanswered(self) -> None:
        """Remove questions without any answer: they are asked again."""
        self.asked = [asked for asked in self.asked if asked.is_done or asked.drawn]
        self.version += 1

    def go_on(self) -> AskLog:
        """The log of the next process, with the questions so far."""
        log = AskLog(self.now)
        log.asked, log.version = self.asked, self.version + 1
        for asked in log.asked:
            asked.is_done = True
        return log

    def _of(self, id: str) -> AnsweredQuestion | None:
        return next((asked for asked in self.asked if asked.id == id), None)

    def _append(self, asked: AnsweredQuestion) -> None:
        self.asked.append(asked)
        self.version += 1
        while len(self.asked) > KEPT_QUESTIONS or (
            len(self.asked) > 1 and sum(each.characters for each in self.asked) > KEPT_CHARACTERS
        ):
            self.asked.pop(0)

    def _turn(self, state: str) -> None:
        self.state, self.since = state, self.now()
        self.version += 1

    def _apply(self, row: Mapping[str, Any]) -> None:
        kind = row.get("event")
        self.version += 1
        if kind == "starting":
            self._turn("loading")
        elif kind == "ready":
            names = row.get("checkpoints")
            self.checkpoints = [str(name) for name in names] if isinstance(names, list) else []
            self.device = str(row.get("device") or "")
            self._turn("ready")
        elif kind in ("failed", "ended"):
            self.end(str(kind), str(row.get("message") or ""), str(row.get("code") or ""))
        elif id := str(row.get("id") or ""):
            self._apply_answer(kind, id, row)

    def _apply_answer(self, kind: object, id: str, row: Mapping[str, Any]) -> None:
        asked = self._of(id)
        if asked is None:
            asked = AnsweredQuestion(id, "")
            self._append(asked)
        if kind == "question":
            asked.question, asked.gold = str(row.get("question") or ""), str(row.get("answer") or "")
            index = row.get("index")
            asked.index = index if isinstance(index, int) else None
        elif kind == "text":
            asked.at(row).add(str(row.get("text") or ""))
        elif kind == "completion":
            asked.at(row).end(row)
        elif kind == "error":
            asked.problems = [*asked.problems[-3:], str(row.get("message") or "")]
        elif kind == "done":
            asked.is_done = True


# ------------------------------------------------------------------------------------------------------- the form


@dataclass(frozen=True)
class Form:
    """What the user asks for."""

    steps: list[int]
    prompt: str
    index: int | None
    count: int
    temperature: float | None
    seed: int

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the ``ask`` request."""
        what = {"prompt": self.prompt} if self.index is None else {"index": self.index}
        warm = {} if self.temperature is None else {"temperature": self.temperature}
        return {**what, **warm, "count": self.count, "seed": self.seed}


def read_form(values: Mapping[str, str], known: Sequence[int]) -> Form:
    """The form of the texts of its fields; ``known``: complete checkpoints. Raises ValueError with field and reason."""
    steps = _steps(values["checkpoints"], known)
    prompt = values["prompt"].strip()
    if not prompt:
        raise ValueError("question: type one, or # and the number of a held-out problem, such as #12")
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"question: {len(prompt):,} characters, more than {MAX_PROMPT:,}")
    index = _integer(prompt[1:]) if prompt.startswith("#") else None
    count, seed = _integer(values["count"] or "1"), _integer(values["seed"] or "0")
    if count is None or not 1 <= count <= MAX_COUNT:
        raise ValueError(f"n: an integer from 1 to {MAX_COUNT}, not {values['count']}")
    if seed is None:
        raise ValueError(f"seed: an integer of 0 or more, not {values['seed']}")
    temperature = None
    if text := values["temperature"].strip():
        temperature = to_float(_number(text))
        if temperature is None or not 0 <= temperature <= 100:
            raise ValueError(f"temperature: a number from 0 to 100, not {text}")
    return Form(steps, "" if index is not None else prompt, index, count, temperature, seed)


def _steps(text: str, known: Sequence[int]) -> list[int]:
    words = text.replace("step_", "").replace(",", " ").split()
    steps = [step for step in map(_integer, words) if step is not None]
    if len(steps) != len(words) or not 1 <= len(set(steps)) == len(steps) <= 2:
        raise ValueError(f"checkpoints: one step or two, such as {', '.join(map(str, [*known[-1:], 0]))}; not {text!r}")
    if missing := [step for step in steps if step not in (0, *known)]:
        raise ValueError(f"checkpoints: no complete step {missing[0]}; there are {listed([0, *known])}")
    return steps


def listed(steps: Sequence[int], most: int = 8) -> str:
    """Steps as text, the ones in the middle left out."""
    shown = list(map(str, steps))
    return ", ".join(shown if len(shown) <= most else [*shown[: most // 2], "…", *shown[-most // 2 :]])


def _integer(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
