"""What the compare view shows: the marked runs with their letters, the pinned one, axis, smoothing; configurations,
evaluations, and evaluations in pairs. No Textual."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.curves import mean_over
from grpo_train.run_dir.display import setting
from grpo_tui.box.asking import LIVE_S, REST_S, Asking, monotonic
from grpo_tui.box.charts import ELAPSED, RUN_LOOKS, ChartEvents, Placed, PlotView, RunLook
from grpo_tui.box.curves import Curves
from grpo_tui.box.events import RunEvent, RunEvents, evaluation_events
from grpo_tui.box.formatting import one_line
from grpo_tui.box.log import RunLogs, row_step, row_time
from grpo_tui.box.rows import RunRow
from grpo_tui.views.compare.standing import TRACKED, Track, interpolate, track_of
from remote.protocol.logs import MAX_WIDTH
from remote.protocol.rows import UNREADABLE

TASK, SCALES = "task.", ("rollout.temperature", "rollout.top_p", "rollout.top_k")
"""The section and the keys that decide what a reward of 1 is."""
LETTERS = tuple(look.letter for look in RUN_LOOKS)
"""Of the compared runs: as many as the view takes."""


class RunCurves(Curves):
    """The curves of one compared run. Its log is not followed: they are asked for again while it grows."""

    def __init__(self, run: str, now: Callable[[], float] = monotonic) -> None:
        super().__init__(run, now=now)
        self.track: Track | None = None
        """The run along its log, once its curves are whole."""
        self._logs = RunLogs(run)
        self._step = -1

    @property
    def origin(self) -> float:
        """The x that is drawn as 0: of a time axis, the run's first time."""
        return (self.first or 0.0) if self.axis == "time" else 0.0

    def reached(self, step: int) -> None:
        """The list of runs has this step for the run."""
        if step != self._step and self.is_answered and self.asking.is_due(LIVE_S):
            self._step = step
            self.invalidate()

    def recall(self, reply: Mapping[str, Any], at: float) -> None:
        """Show the curves that the laptop kept, until the box answers."""
        if not self.curves:
            super().recall(reply, at)
            self.axis, self.track = reply["x"], track_of(reply)

    def take(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight."""
        version = self.version
        self.answer(reply, self._logs)
        if self.version != version:
            self.track = track_of(reply) if not self.is_coarse else None


class Compared:
    """One of the compared runs."""

    def __init__(self, name: str, place: int, now: Callable[[], float]) -> None:
        self.name, self.place = name, place
        self.curves = RunCurves(name, now)
        self.row: RunRow | None = None
        self.facts: Facts | None = None
        """Its configuration and evaluations; None before the box has answered."""
        self.asking = Asking(now)
        """For the facts."""
        self.facts_recalled_at: float | None = None
        """When the box gave the facts that the laptop kept; None once it has answered."""

    @property
    def look(self) -> RunLook:
        return RUN_LOOKS[self.place]

    @property
    def letter(self) -> str:
        return self.look.letter

    @property
    def is_over(self) -> bool:
        return self.row is not None and self.row.is_over


class Comparison(PlotView):
    """The compared runs, and what the user has chosen. Their letters are those from A on, without a gap."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self.runs: list[Compared] = []
        """In the order of their letters."""
        self.left_out = 0
        """Marked runs beyond the number of letters."""
        self.pinned = ""
        """Name of the run that the others are compared with."""
        self.current = ""
        """Name of the run that ``p`` and ``d`` act on."""
        self.columns = 0
        """Pixel columns of the widest chart."""
        self.page = 0
        """Which of the metrics are in the charts."""
        self.shows_all = False
        """Whether the keys that are the same in all runs are listed, too."""
        self.events = ChartEvents()
        """Of the current run."""
        self._placed_of: object = None
        self._now = now

    @property
    def is_comparing(self) -> bool:
        """Whether there are enough runs."""
        return len(self.runs) > 1

    def scales(self) -> list[str]:
        """The keys that differ and decide what a reward of 1 is: rewards of such runs are not ranked."""
        configs = [run.facts.config for run in self.runs if run.facts is not None]
        keys = dict.fromkeys(key for config in configs for key in config if key in SCALES or key.startswith(TASK))
        return [key for key in keys if len({_normal(config.get(key)) for config in configs}) > 1]

    def follow(self, marked: Iterable[str], rows: Mapping[str, RunRow]) -> None:
        """Compare the marked runs."""
        names = list(marked)
        kept = {run.name: run for run in self.runs if run.name in names}
        for name in names:
            free = [place for place in range(len(LETTERS)) if place not in {run.place for run in kept.values()}]
            if name not in kept and free:
                kept[name] = Compared(name, free[0], self._now)
        self.runs = sorted(kept.values(), key=lambda run: run.place)
        for place, run in enumerate(self.runs):  # after one has left, the letters close up
            run.place = place
        self.left_out = len(names) - len(kept)
        for run in self.runs:
            run.row = rows.get(run.name)
            run.curves.reached(run.row.step if run.row is not None else 0)
        if self.pinned not in kept:
            self.pinned = self.runs[0].name if self.runs else ""
        if self.current not in kept:
            self.current = self.pinned

    def forget(self) -> None:
        """Forget the runs: another box is shown."""
        self.runs, self.pinned, self.current, self.crosshair = [], "", "", None

    def run(self, name: str) -> Compared | None:
        """A compared run by its name."""
        return next((run for run in self.runs if run.name == name), None)

    @property
    def pin(self) -> Compared | None:
        """The pinned run."""
        return self.run(self.pinned)

    def move(self, by: int) -> None:
        """Turn to another run."""
        names = [run.name for run in self.runs]
        if names:
            self.current = names[(names.index(self.current) + by) % len(names)]

    def pin_current(self) -> str:
        """Pin the current run; if it is pinned, the next one. Returns its letter."""
        if self.current == self.pinned:
            self.move(1)
        self.pinned = self.current
        return self.pin.letter if self.pin is not None else ""

    # curves --------------------------------------------------------------------------------------------

    def show(self, metrics: Iterable[str], width: int) -> None:
        """Choose what is asked of each run's log."""
        asked = tuple(dict.fromkeys((*metrics, *TRACKED)))
        for run in self.runs:
            if run.curves.window != self.window:
                run.curves.window = self.window
                run.curves.version += 1
            run.curves.show(asked, min(MAX_WIDTH, width))

    def place_events(self) -> None:
        """Place the events of the current run, if they or its curves have changed."""
        run = self.run(self.current)
        made_of = None if run is None else (run.name, run.curves.version, id(run.facts))
        if made_of == self._placed_of:
            return
        self._placed_of = made_of
        self.events.version += 1
        self.events.placed = []
        if run is not None and run.facts is not None and run.curves.axis == self.x and run.curves.first is not None:
            places = [(run.curves.x_of_step(event.step), event) for event in run.facts.events]
            self.events.placed = [Placed(x - run.curves.origin, event) for x, event in places if x is not None]

    @property
    def mean_over(self) -> int:
        """How many values the means cover that are drawn, the same for all runs; 0 = the values are drawn."""
        longest = max((run.row.step for run in self.runs if run.row is not None), default=0)
        return mean_over(self.smoothing, longest, self.columns)

    @property
    def axis(self) -> str:
        """The x axis as its labels are: times begin with each run."""
        return ELAPSED if self.x == "time" else self.x

    @property
    def ends(self) -> tuple[float, float] | None:
        """First and last x of all runs; None without a curve."""
        found = [
            (run.curves.first - run.curves.origin, run.curves.last - run.curves.origin)
            for run in self.runs
            if run.curves.axis == self.x and run.curves.first is not None and run.curves.last is not None
        ]  # fmt: skip
        if not found:
            return None
        low, high = min(low for low, _ in found), max(high for _, high in found)
        return (low, high) if high > low else (low - 1, low + 1)

    def x_of_step(self, step: int) -> float | None:
        """Where a step of the pinned run is on the axis; None if that is not known."""
        if self.x == "step":
            return float(step)
        track = self.pin.curves.track if self.pin is not None else None
        if track is None or self.x == "time":
            return None
        return interpolate(track.step, track.axis(self.x), step)

    @property
    def version(self) -> object:
        """A value that differs whenever a curve does, or which run is pinned or current."""
        return self.curves_version, self.pinned, self.current

    @property
    def curves_version(self) -> object:
        """A value that differs whenever a curve does."""
        return tuple((run.name, run.place, run.curves.version) for run in self.runs), self.x

    @property
    def recalled_at(self) -> float | None:
        """When the box gave the oldest of the answers that the laptop kept; None if none of them is shown."""
        found = [at for run in self.runs for at in (run.curves.recalled_at, run.facts_recalled_at) if at is not None]
        return min(found, default=None)

    # configuration and evaluations ---------------------------------------------------------------------

    def facts_due(self) -> list[Compared]:
        """The runs whose facts are to be asked for now; the requests are in flight then."""
        return [run for run in self.runs if run.asking.begin("facts", REST_S)]


MAX_CONFIG = 1 << 16
"""Characters of a configuration that are read: the engine's have about 3,000."""
MAX_KEYS = 2_000
MAX_DEPTH = 16
MAX_VALUE = 200
CODE = "code"
COMMIT_LENGTH = 7
CHANGED = "→"
"""Between the values of a key before and after a resume."""


@dataclass(frozen=True)
class Accuracy:
    """The result of one evaluated step."""

    value: float
    spread: float | None
    """Half of its 95 % interval."""
    problems: int | None


@dataclass(frozen=True)
class Facts:
    """What ``show_run`` says about a run."""

    config: Mapping[str, str]
    """Dotted keys to values as they are written; last, the weights it started from and the code."""
    problem: str
    """Why the configuration cannot be read; "" if it can."""
    accuracies: Mapping[str, Mapping[int, Accuracy]]
    """Dataset to step to result."""
    events: Sequence[RunEvent] = ()
    """Stops, resumes, crashes, evaluations, as far as the reply has them."""
    baselines: Mapping[str, Mapping[str, Accuracy]] = field(default_factory=dict)
    """Dataset to the name of a model without a run (``@OWNER--NAME``) to its result."""


def facts_of(run: str, reply: Mapping[str, Any]) -> Facts:
    """From a reply to ``show_run``. A configuration takes some milliseconds."""
    config, problem, rows = {}, "", [dict(row) for row in reply.get("events") or () if isinstance(row, Mapping)]
    try:
        config = {key: setting(value) for key, value in flat_config(str(reply.get("config_text") or "")).items()}
    except ValueError as error:
        problem = str(error)
    config |= {key: text for key, text in _resumed_with(rows).items() if key in config}
    launch, status = reply.get("launch") or {}, reply.get("status") or {}
    if weights := launch.get("ckpt"):
        config["starting weights"] = _text(weights)
    version, commit = status.get("version"), status.get("commit")
    if version or commit:
        config[CODE] = _text(" ".join(str(part) for part in (version, str(commit or "")[:COMMIT_LENGTH]) if part))
    accuracies = _accuracies(run, reply.get("evaluations") or ())
    happened = RunEvents()
    for row in rows:
        happened.take(0, row_step(row), row_time(row), row)
    events = (*happened.events, *evaluation_events(run, reply))
    return Facts(config, problem, accuracies, events, _baselines(reply.get("baselines") or ()))


def _resumed_with(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The first and the last value of each key that a resume changed: ``1e-4→2e-3``, ``1e-4→…→2e-3``."""
    found: dict[str, list[str]] = {}
    for row in rows:
        changes = row.get("changes") if row.get("event") == "resumed" else None
        for key, pair in changes.items() if isinstance(changes, Mapping) else ():
            if isinstance(pair, list) and len(pair) == 2 and pair[0] != pair[1]:
                before, after = (_text(setting(value)) for value in pair)
                found.setdefault(str(key), [before]).append(after)
    ends = {key: values if len(values) < 3 else (values[0], "…", values[-1]) for key, values in found.items()}
    return {key: CHANGED.join(values) for key, values in ends.items()}


def _text(value: object) -> str:
    return one_line(str(value))[:MAX_VALUE]


def flat_config(text: str) -> dict[str, str]:
    """The values of a YAML mapping by dotted key, as they are written.

    Read as a stream of tokens: a box sends the text, and an alias could make a short one huge. Raises ValueError.
    """
    import yaml

    if len(text) > MAX_CONFIG:
        raise ValueError(f"the configuration has more than {MAX_CONFIG:,} characters")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, str] = {}
    path: list[str] = []
    """The keys of the open mappings."""
    items: list[list[str] | None] = []
    """Of each open collection: the values of a list, or None for a mapping."""
    key: str | None = None

    def add(value: str) -> None:
        nonlocal key
        if items and (values := items[-1]) is not None:
            values.append(value)
        elif items and key is None:
            key = value
        elif items:
            found[".".join([*path, key or ""])] = _text(value)
            key = None
        if len(found) > MAX_KEYS:
            raise ValueError(f"the configuration has more than {MAX_KEYS:,} keys")

    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("the configuration has an alias (*NAME), which is not supported")
            if isinstance(event, yaml.ScalarEvent):
                add(event.value)
            elif isinstance(event, yaml.CollectionStartEvent):
                if len(items) >= MAX_DEPTH:
                    raise ValueError(f"the configuration is nested more than {MAX_DEPTH} deep")
                is_list = isinstance(event, yaml.SequenceStartEvent)
                inner = bool(items) and items[-1] is not None
                if items and not inner and not is_list:
                    path.append(key or "")
                    key = None
                items.append([] if is_list or inner else None)
            elif isinstance(event, yaml.CollectionEndEvent):
                values = items.pop()
                if values is not None and items:
                    add(f"[{', '.join(values)}]")
                elif items:
                    path.pop()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"invalid YAML{f' on line {mark.line + 1}' if mark else ''}") from None
    return found


def differing(configs: Sequence[Mapping[str, str] | None]) -> tuple[list[str], int]:
    """The keys whose values differ between the known configurations (the code comes last), and the number of all."""
    known = [config for config in configs if config is not None]
    keys = list(dict.fromkeys(key for config in known for key in config))
    found = [key for key in keys if len({_normal(config.get(key)) for config in known}) > 1]
    return sorted(found, key=lambda key: key == CODE), len(keys)


def differ(one: str | None, other: str | None) -> bool:
    """Whether two values differ: ``1e-06`` and ``0.000001`` do not."""
    return _normal(one) != _normal(other)


def _normal(value: str | None) -> object:
    """A value as it is compared."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return {"": "null", "~": "null"}.get(value, value)
    return number if math.isfinite(number) else value


def _accuracies(run: str, evaluations: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Accuracy]]:
    """The results in the tables of a run's evaluations; steps without one are left out."""
    found: dict[str, dict[int, Accuracy]] = {}
    for evaluation in evaluations:
        dataset = str(evaluation["name"]).removeprefix(f"{run}_")
        for row in evaluation.get("metrics") or ():
            step, result = _number(row.get("step")), _accuracy(row)
            if step is None or result is None or row.get("name") not in (None, f"step_{step:.0f}"):
                continue
            found.setdefault(dataset, {})[int(step)] = result
    return found


def _baselines(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Accuracy]]:
    """The results of models without a run, by dataset."""
    found: dict[str, dict[str, Accuracy]] = {}
    for evaluation in rows:
        dataset = str(evaluation.get("dataset") or "")
        results = [result for row in evaluation.get("metrics") or () if (result := _accuracy(row)) is not None]
        if results:
            found.setdefault(dataset, {})[one_line(str(evaluation["name"]).removesuffix(f"_{dataset}"))] = results[-1]
    return found


def _accuracy(row: Mapping[str, Any]) -> Accuracy | None:
    """The result in a row of a table; None without one."""
    value = _number(row.get("accuracy"))
    low, high, problems = (_number(row.get(column)) for column in ("ci_low", "ci_high", "problems"))
    spread = (high - low) / 2 if low is not None and high is not None else None
    return None if value is None else Accuracy(value, spread, None if problems is None else int(problems))


def _number(cell: Any) -> float | None:
    """The finite number in a cell, which is text."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if abs(value) < 1e15 else None


MOST_STEPS = 16
"""Steps that are compared in pairs, the newest ones."""


@dataclass(frozen=True)
class Pair:
    """A run's evaluated step against the same step of the pinned run, on the problems that both have."""

    difference: float
    low: float
    high: float
    problems: int
    gained: int | None
    """Problems that it has right and the pinned run does not."""
    lost: int | None

    @property
    def spread(self) -> float:
        """Half of the 95 % interval."""
        return (self.high - self.low) / 2

    @property
    def is_clear(self) -> bool:
        """Whether the interval does not contain zero."""
        return self.low > 0 or self.high < 0


class PairedResults:
    """The comparisons with the pinned run. The box computes them: completions do not travel."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str, int], Pair] = {}
        """By dataset, run and step."""
        self.problems: list[str] = []
        """Why a step or all of them are not compared."""
        self.is_waiting = False
        self._of: object = None

    def due(self, pinned: Compared | None, runs: Sequence[Compared]) -> dict[str, Any] | None:
        """The parameters of the request to send now, which is then in flight; None if there is none."""
        if self.is_waiting or (found := _common(pinned, runs)) is None:
            return None
        key, params = found
        if key == self._of:
            return None
        self._of = key
        self.pairs, self.problems = {}, []
        if not params["steps"]:
            return None
        self.is_waiting = True
        return params

    def wanted(self, pinned: Compared | None, runs: Sequence[Compared]) -> dict[str, Any] | None:
        """The parameters of the comparison of these runs, if nothing is known of it; None if there is none."""
        found = _common(pinned, runs) if not self.pairs and not self.is_waiting else None
        return found[1] if found is not None and found[1]["steps"] else None

    def recall(self, reply: Mapping[str, Any]) -> None:
        """Show the comparison that the laptop kept, until the box answers."""
        if not self.pairs and not self.is_waiting:
            self._take(reply)

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight."""
        self.is_waiting = False
        self._take(reply)

    def _take(self, reply: Mapping[str, Any]) -> None:
        for row in reply["comparisons"]:
            if UNREADABLE in row:
                self.problems.append(f"{row['name']}: {row[UNREADABLE]}")
            else:
                key = (row["dataset"], row["run"], int(row["step"]))
                values = (row["difference"], row["low"], row["high"], int(row["n"]))
                self.pairs[key] = Pair(*values, row.get("gained"), row.get("lost"))
        self.problems += [one_line(problem) for problem in reply["problems"]]

    def fail(self, message: str) -> None:
        """The box did not answer the request in flight."""
        self.is_waiting, self.problems = False, [one_line(message)]


def _common(pinned: Compared | None, runs: Sequence[Compared]) -> tuple[object, dict[str, Any]] | None:
    """The results of the steps that are evaluated for the pinned run and another one, and the parameters of the request
    to compare them; None while a run's evaluations are not known."""
    others = [run for run in runs if run is not pinned]
    if pinned is None or pinned.facts is None or any(run.facts is None for run in others):
        return None
    steps: set[int] = set()
    compared: dict[str, None] = {}
    results = []
    for run in others:
        assert run.facts is not None
        for dataset, found in run.facts.accuracies.items():
            reference = pinned.facts.accuracies.get(dataset, {})
            for step in found.keys() & reference.keys():
                steps.add(step)
                compared[run.name] = None
                results.append((dataset, run.name, step, found[step], reference[step]))
    params = {"run": pinned.name, "others": list(compared), "steps": sorted(steps)[-MOST_STEPS:]}
    return (pinned.name, sorted(results, key=repr)), params
