"""The rules of the verdict on a run: what its curves, evaluations and events say about it. Standard library only.

Each finding is made from the rows so far, and holds now: a run that recovered has not collapsed. A level is a median
and noise is what neighboring steps differ by, so single bad batches move neither. Where a verdict would need more rows
than there are, there is none.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from grpo_train.run_dir.curves import noise
from grpo_train.run_dir.display import setting
from grpo_train.run_dir.evaluations import list_evaluations
from grpo_train.run_dir.files import number_in, to_float
from grpo_train.run_dir.run import RunDir
from grpo_train.run_dir.verdict import HELD_OUT, RunVerdict

ROWS = 2_000
"""Rows that a verdict is made from: each of a longer log is the mean of neighboring steps."""
LOW_ROWS = 8
"""Rows from which on a fall is not a dip."""
BEFORE = 20
"""Rows whose median is the level before a change."""
FALLING = 3
"""Last rows whose median says that a run may be falling."""
DECLINE = 8
"""Rows that a fall may take."""
LOST = 0.4
"""Share of the level, or of what was gained, that a collapse loses."""
ALMOST_ALL = 0.9
"""Share that one held-out evaluation alone has to lose."""
CLEAR = 6.0
"""Standard errors that a fall takes to be one."""
DEAD = 0.88
"""Share of groups with equal rewards from which on a step carries no signal."""
DEAD_ROWS = 10
DEAD_GROUPS = "frac_reward_zero_std"
LOW_ESS = 0.5
GROWN = 10.0
"""Times its earlier level that KL or the gradient's norm grows to where a run diverges."""
HIGH_KL = 1.0
HIGH_ROWS = 8
HACKING = 0.3
GOOD = 0.85
"""Share of the best possible reward from which on a plateau is a success."""
RISEN = 5.0
"""Standard errors by which a run is better than at its start …"""
EARLY = 30
"""… and at this many rows twice as many: the noise of a few rows is not known well."""
RISEN_HELD_OUT = 4.0
"""Standard errors by which held-out accuracy rises where a run is better by it alone …"""
LEVEL_HELD_OUT = 2.0
"""… and up to which it does not speak against a flat reward."""
FLAT_ROWS = 80
"""Fewest rows that are flat …"""
FLAT_SHARE = 0.58
"""… and their share of the run: a plateau in the middle is not the end of it."""
OLD_ERRORS = 3.0
"""Standard errors by which as many last rows as are flat must rise where a run was better long ago."""
FLAT_RISE = 0.5
"""Standard errors that flat rows rise at most, …"""
FLAT_ERRORS = 1.25
"""… and by which their halves differ at most."""
ENDS = (0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.7)
"""Shares of the rows at which a flat part may end, where the rows after it are no better."""
UNSEEN = 0.1
"""Largest standard error of a rise, as a share of the level, at which flat rows say anything."""
NEAR_EVENT = 5
"""Steps within which a resume that changed something explains a change."""
EXPLAIN = ("optimizer.", "algorithm.", "rollout.", "task.", "model.")
"""Sections of the config whose keys change what is learned."""
PROMPTS, REWARDS = "task.", "task.reward"
"""The section whose keys make prompts harder, and the beginning of those among them that do not."""
HOLDS = "held-out accuracy holds"
WAYS = {"all correct": "groups/all_correct", "all wrong": "groups/all_wrong", "equal": "groups/all_equal"}
SIGNS = ("hacking/multiple_answers", "hacking/hardcoded")
METRICS = (
    "reward", "reward_std", "accuracy", "kl", "grad_norm", "ess/token", DEAD_GROUPS, *WAYS.values(), *SIGNS,
)  # fmt: skip
"""What a verdict reads of each step."""
Column = list[float]


class HeldOutAccuracy(NamedTuple):
    """The held-out accuracy of one checkpoint."""

    step: int
    accuracy: float
    problems: int = 0
    """0 = not known."""

    @property
    def error(self) -> float:
        """Its standard error (binomial, at a share of at least one problem)."""
        count = self.problems or 200
        share = min(max(self.accuracy, 1 / count), 1 - 1 / count)
        return math.sqrt(share * (1 - share) / count)


@dataclass(frozen=True)
class Evidence:
    """What a verdict is made from."""

    steps: Sequence[float]
    column: Callable[[str], Sequence[float]]
    """The values of a metric, one a step; NaN, infinite or huge where there is none."""
    evaluations: Sequence[HeldOutAccuracy] = ()
    """In the order of their steps, of one dataset."""
    events: Sequence[Mapping[str, Any]] = ()
    is_finished: bool = False
    total_steps: int = 0
    """0 = not known."""


def judge(evidence: Evidence) -> RunVerdict | None:
    """The most urgent verdict that is true now; None where it is too early to say."""
    run = _Run.of(evidence)
    if run.count < LOW_ROWS:
        return None
    for find in (_collapsed, _diverging, _suspicious, _no_signal, _flat, _improving, _done):
        found = find(run)
        if found is not None:
            return None if found.tone == "good" and _is_falling(run.reward) else found
    return None


def verdict_of(run: RunDir) -> RunVerdict | None:
    """The verdict on a run on this disk. Its logs are read whole; lines that cannot be read are left out."""
    read = CurvesRead()
    for row in run.read_log("train_log.jsonl"):
        read.add(row)
    return judge_run(run, read.steps, read.columns.__getitem__)


class CurvesRead:
    """What a verdict needs of the rows of a log, taken one by one."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.columns: dict[str, list[float]] = {name: [] for name in METRICS}

    def add(self, row: Mapping[str, Any]) -> None:
        if (step := to_float(row.get("step"))) is None or not math.isfinite(step):
            return
        self.steps.append(step)
        for name, values in self.columns.items():
            values.append(math.nan if (value := to_float(row.get(name))) is None else value)


def judge_run(run: RunDir, steps: Sequence[float], column: Callable[[str], Sequence[float]]) -> RunVerdict | None:
    """The verdict on a run on this disk whose curves are read already."""
    total = (run.read_status() or {}).get("total_steps")
    return judge(
        Evidence(
            steps,
            column,
            held_out(list_evaluations(run.root, run.name)),
            [event for _, event in run.events()],
            run.observed_state().state == "finished",
            total if isinstance(total, int) else 0,
        )
    )


def held_out(evaluations: Sequence[Mapping[str, Any]]) -> list[HeldOutAccuracy]:
    """The accuracies on the dataset with the most evaluated steps, from rows of :func:`list_evaluations`."""
    found: list[list[HeldOutAccuracy]] = [[]]
    for evaluation in evaluations:
        results = []
        for row in evaluation["metrics"]:
            accuracy = number_in(row.get("accuracy"))
            if accuracy is not None and len(row["step"]) <= 15:
                results.append(HeldOutAccuracy(int(row["step"]), accuracy, int(number_in(row.get("n")) or 0)))
        found.append(sorted(results))
    return max(found, key=len)


# The series -------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    given: Evidence
    steps: Column
    size: int
    """Rows of the log that each row here is the mean of."""
    _columns: dict[str, Column] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Evidence) -> _Run:
        size = -(-len(given.steps) // ROWS) if given.steps else 1
        return cls(given, [float(step) for step in given.steps[::size]], size)

    @property
    def count(self) -> int:
        return len(self.steps)

    def column(self, name: str) -> Column:
        """A metric, NaN where it is missing."""
        if name not in self._columns:
            values = [_finite(value) for value in self.given.column(name)]
            self._columns[name] = values if self.size == 1 else list(_means(values, self.size))
        return self._columns[name]

    def has(self, name: str) -> bool:
        return any(value == value for value in self.column(name))

    @property
    def reward(self) -> Column:
        return _filled(self.column("reward"))

    def step(self, row: int) -> int:
        return int(self.steps[min(max(row, 0), self.count - 1)])

    def cause(self, since: int) -> tuple[str, int]:
        """What a resume within the last steps before changed, and at which step; ("", 0) without one."""
        changes, step = self.changes(since)
        return ", ".join(f"{key.rpartition('.')[2]} {_change(values)}" for key, values in changes.items()), step

    def changes(self, since: int) -> tuple[Mapping[str, Any], int]:
        """The same by the keys of the config."""
        for event in reversed(self.given.events):
            step, changes = event.get("step"), event.get("changes")
            if event.get("event") != "resumed" or not isinstance(step, int) or not isinstance(changes, Mapping):
                continue
            explains = {key: values for key, values in changes.items() if str(key).startswith(EXPLAIN)}
            if explains and since - NEAR_EVENT - self.size <= step <= since + self.size:
                return explains, step
        return {}, 0


def _change(values: Any) -> str:
    if isinstance(values, Sequence) and not isinstance(values, str) and len(values) == 2:
        return "→".join(map(setting, values))
    return str(values)


def _finite(value: float) -> float:
    return float(value) if -1e300 < value < 1e300 else math.nan


def _means(values: Column, size: int) -> Iterator[float]:
    for start in range(0, len(values), size):
        kept = [value for value in values[start : start + size] if value == value]
        yield sum(kept) / len(kept) if kept else math.nan


def _filled(values: Column) -> Column:
    """With each gap at the value before it."""
    last = next((value for value in values if value == value), 0.0)
    found = []
    for value in values:
        last = value if value == value else last
        found.append(last)
    return found


def _first_low(values: Column, start: int, end: int, line: float) -> int:
    """The first row from ``start`` on from which values stay below a line, but for single ones."""
    for row in range(start, end):
        later = values[row : row + 4]
        if values[row] < line and median(later) < line:
            return row
    return end


# The findings -----------------------------------------------------------------------------------------------


def _collapsed(run: _Run) -> RunVerdict | None:
    return _fallen(run, "reward", run.reward) or _fallen_held_out(run)


def _fallen(run: _Run, metric: str, values: Column) -> RunVerdict | None:
    """A level that was there, a fall, and every row since then low."""
    count = len(values)
    sums = list(accumulate(values, initial=0.0))
    best: tuple[float, int] | None = None
    for row in range(5, count - LOW_ROWS + 1):  # the split where the means of both sides differ most, in their errors
        low = max(0, row - BEFORE)
        before, after = (sums[row] - sums[low]) / (row - low), (sums[count] - sums[row]) / (count - row)
        score = (before - after) * math.sqrt((row - low) * (count - row) / (count - low))
        if best is None or score > best[0]:
            best = score, row
    if best is None or best[0] <= 0:
        return None
    split = best[1]
    before = median(values[max(0, split - BEFORE // 2) : split])
    tail = values[split:]
    after = median(tail[min(DECLINE, len(tail) // 2) :])
    fall = before - after
    start = median(values[: min(5, split)])
    floor = min(0.0, min(values))
    lost_level = fall >= LOST * (before - floor)
    lost_gain = before - start > 0.25 * (before - floor) and fall >= LOST * (before - start)
    spread = max(noise(values[:split]), noise(tail))
    error = math.hypot(_error(values[:split], min(split, BEFORE)), spread / math.sqrt(len(tail)))
    clear, rows = (CLEAR, LOW_ROWS) if lost_level else (1.5 * CLEAR, 2 * LOW_ROWS)
    if not (lost_level or lost_gain) or fall < clear * error or fall < 2 * spread or fall <= 0:
        return None
    middle = before - fall / 2
    first = max(0, split - DECLINE)
    first = max((row + 1 for row in range(first, split) if values[row] >= before), default=first)  # still whole there
    onset = _first_low(values, first, split + 1, before - fall / 3)
    if sum(value < middle for value in values[onset:]) < rows - 1 or any(
        _medians_above(values[onset + DECLINE :], middle)
    ):
        return None
    if _dipped_before(values[:onset], middle, count - onset):
        return None
    if _was_dead(run, split):
        return None
    changes, _ = run.changes(run.step(onset))
    holds = HOLDS if _holds_held_out(run, run.step(onset)) else ""
    if holds and all(key.startswith(PROMPTS) and not key.startswith(REWARDS) for key in changes):
        return None
    done = _first_low(values, onset, count, after + fall / 10 + spread)
    cause, at = run.cause(run.step(onset))
    return RunVerdict("collapsed", run.step(onset), run.step(done), metric, before, after, cause, at, holds)


def _was_dead(run: _Run, row: int) -> bool:
    """Whether hardly a group had a signal before a row: a few lucky rewards were no level that can be lost."""
    if not run.has(DEAD_GROUPS):
        return False
    return median(_filled(run.column(DEAD_GROUPS))[max(0, row - BEFORE // 2) : row]) >= DEAD


def _holds_held_out(run: _Run, onset: int) -> bool:
    """Whether held-out accuracy is as before after the reward fell: the prompts became harder, not the run worse,
    unless a resume changed something else."""
    before = [one for one in run.given.evaluations if one.step < onset]
    after = [one for one in run.given.evaluations if one.step > onset]
    if not before or len(after) < 2 or after[-1].step < onset + DECLINE:
        return False
    first, last = before[-1], after[-1]
    if first.accuracy <= 2 * first.error:  # nothing that could be lost
        return False
    return last.accuracy > first.accuracy - 2 * math.hypot(first.error, last.error)


def _medians_above(values: Column, line: float) -> Iterator[bool]:
    """Whether each five rows are above a line: the run came back."""
    for row in range(0, max(0, len(values) - 4)):
        yield median(values[row : row + 5]) > line


def _dipped_before(values: Column, line: float, low_rows: int) -> bool:
    """Whether the run was as low before for about as long, and came back: it has waves."""
    first = next((row for row in range(len(values)) if median(values[row : row + 5]) > line), len(values))
    longest = length = 0
    for value in values[first:]:
        length = length + 1 if value < line else 0
        longest = max(longest, length)
    return longest >= 3 and low_rows < 3 * longest


def _fallen_held_out(run: _Run) -> RunVerdict | None:
    """Two evaluations far below the best one, or one at almost nothing."""
    found = run.given.evaluations
    if len(found) < 2:
        return None
    place = max(range(len(found) - 1), key=lambda one: found[one].accuracy)
    best, later = found[place], found[place + 1 :]
    fall = best.accuracy - max(one.accuracy for one in later)
    error = math.hypot(best.error, max(one.error for one in later))
    share, clear = (LOST, CLEAR) if len(later) > 1 else (ALMOST_ALL, 2 * CLEAR)
    if fall < share * best.accuracy or fall < clear * error:
        return None
    if _trend(run.reward[bisect_right(run.steps, best.step) - 1 :]) > 0:
        return None
    cause, at = run.cause(later[0].step)
    return RunVerdict(
        "collapsed", later[0].step, later[-1].step, HELD_OUT, best.accuracy, later[-1].accuracy, cause, at
    )


def _trend(values: Column) -> float:
    """How much a curve rises from its first to its last third, in standard errors."""
    third = len(values) // 3
    if third < 3:
        return 0.0
    first, last = values[:third], values[-third:]
    error = noise(values) * math.sqrt(2 / third)
    rise = sum(last) / third - sum(first) / third
    return rise / error if error else math.copysign(math.inf, rise) if rise else 0.0


def _diverging(run: _Run) -> RunVerdict | None:
    return _low_ess(run) or _grown(run, "kl", HIGH_KL) or _grown(run, "grad_norm", 0.0)


def _low_ess(run: _Run) -> RunVerdict | None:
    if not run.has("ess/token"):
        return None
    values = _filled(run.column("ess/token"))
    tail = values[-HIGH_ROWS:]
    if len(tail) < HIGH_ROWS or sum(value < LOW_ESS for value in tail) < HIGH_ROWS - 1:
        return None
    row = len(values)
    while row > 2 and median(values[row - 3 : row]) < LOW_ESS:
        row -= 1
    row = next((one for one in range(max(0, row - 2), len(values)) if values[one] < LOW_ESS), row)
    before = median(values[:row] or values[:1])
    cause, at = run.cause(run.step(row))
    return RunVerdict("diverging", run.step(row), run.step(row), "ess/token", before, median(tail), cause, at)


def _grown(run: _Run, metric: str, least: float) -> RunVerdict | None:
    """A metric that grew to ten times its earlier level and stays there or rises."""
    raw = run.column(metric)
    if not run.has(metric) or len(raw) < HIGH_ROWS + 5:
        return None
    known = [value for value in raw if value == value and value > 0]
    if len(known) < 5:
        return None
    highest = max(known)
    if metric == "grad_norm" and run.has(DEAD_GROUPS) and median(_filled(run.column(DEAD_GROUPS))) > DEAD / 2 + 0.3:
        return None  # most groups give no gradient, so one that does is a spike
    values = [value if value == value else highest * GROWN**2 for value in raw]  # NaN in a norm: overflow
    row = len(values)
    normal = median(known[: max(5, len(known) // 2)])
    line = max(least, GROWN * normal)
    while row > 3 and median(values[row - 3 : row]) > line:
        row -= 1
    if len(values) - row < HIGH_ROWS - 2 or sum(v > line for v in values[-HIGH_ROWS:]) < HIGH_ROWS - 2:
        return None
    calm = median(values[max(0, row - 60) : max(1, row - 20)]) if row > 25 else normal
    onset = row
    while onset > 1 and median(values[max(0, onset - 3) : onset]) > 2 * max(calm, 1e-12):
        onset -= 1
    cause, at = run.cause(run.step(onset))
    how = "not finite" if sum(value != value for value in raw[-5:]) > 2 else ""
    after = highest if how else median(values[-5:])
    return RunVerdict("diverging", run.step(onset), run.step(row), metric, normal, after, cause, at, how)


def _suspicious(run: _Run) -> RunVerdict | None:
    return _overfitted(run) or _hacked(run)


def _overfitted(run: _Run) -> RunVerdict | None:
    """Reward up while held-out accuracy is down in three evaluations."""
    found = run.given.evaluations
    if len(found) < 4:
        return None
    place = max(range(len(found)), key=lambda one: found[one].accuracy)
    best, later = found[place], found[place + 1 :]
    if len(later) < 3:
        return None
    last = sum(one.accuracy for one in later[-2:]) / 2
    fall, error = best.accuracy - last, math.hypot(best.error, later[-1].error / math.sqrt(2))
    if fall < 0.05 or fall < 3 * error:
        return None
    rows = run.reward[max(0, bisect_right(run.steps, best.step) - 1) :]
    if _trend(rows) < -1:
        return None
    since = later[0].step
    return RunVerdict("suspicious", since, later[-1].step, HELD_OUT, best.accuracy, later[-1].accuracy)


def _hacked(run: _Run) -> RunVerdict | None:
    for metric in SIGNS:
        values = _filled(run.column(metric)) if run.has(metric) else []
        if len(values) < HIGH_ROWS or sum(value > HACKING for value in values[-HIGH_ROWS:]) < HIGH_ROWS - 1:
            continue
        row = len(values)
        while row > 2 and median(values[row - 3 : row]) > HACKING:
            row -= 1
        row = next(one for one in range(max(0, row - 2), len(values)) if values[one] > HACKING)
        if _trend(run.reward[max(0, row - 10) :]) < -1:
            continue
        before = median(values[: max(1, row)])
        return RunVerdict("suspicious", run.step(row), run.step(row), metric, before, median(values[-5:]))
    return None


def _no_signal(run: _Run) -> RunVerdict | None:
    values = _filled(run.column(DEAD_GROUPS)) if run.has(DEAD_GROUPS) else []
    if len(values) < DEAD_ROWS or sum(values[-DEAD_ROWS:]) < DEAD * DEAD_ROWS or median(values[-5:]) < DEAD - 0.08:
        return None
    row = len(values) - DEAD_ROWS
    while row > 0 and sum(values[row - 1 : row + 4]) >= DEAD * 5 - 1e-9:
        row -= 1
    shares = {way: median(_filled(run.column(name))[row:] or [0.0]) for way, name in WAYS.items() if run.has(name)}
    how = max(shares, key=lambda way: shares[way]) if shares else "equal"
    cause, at = run.cause(run.step(row))
    if how == "all correct" and run.given.is_finished and not cause:  # by learning, not by a change
        return None
    before = median(values[:row]) if row else values[0]
    return RunVerdict(
        "no signal", run.step(row), run.step(row), DEAD_GROUPS, before, median(values[row:]), cause, at, how
    )


def _is_good(run: _Run, values: Column) -> bool:
    """Whether a level is near the best that can be reached."""
    if run.has("accuracy"):
        return median(_filled(run.column("accuracy"))[-len(values) :]) > GOOD
    correct = _filled(run.column("groups/all_correct")) if run.has("groups/all_correct") else []
    return bool(correct) and median(correct[-len(values) :]) > 0.5


def _flat(run: _Run) -> RunVerdict | None:
    """The longest last part of the run in which no change beyond noise is seen, and in which one would be seen.

    A finding of some rows ago holds while the rows since then are not better, so that the verdict does not flicker.
    """
    values, count = run.reward, run.count
    least = _least_flat(run)
    spread = _mean(_filled(run.column("reward_std"))) if run.has("reward_std") else 0.0
    for end in (count, *(int(count * share) for share in ENDS)):
        length = max((one for one in _lengths(least, end) if _is_level(values[end - one : end], spread)), default=0)
        since = values[end:]
        if not length or _is_good(run, values[end - length :]) or _held_out_rise(run, end - length) > LEVEL_HELD_OUT:
            continue
        level = _mean(values[end - length : end])
        if len(since) >= 5 and _mean(since) > level + 2 * _error(values[end - length :], len(since)):
            continue
        return RunVerdict(
            "flat", run.step(end - length), run.step(count - 1), "reward", level, _mean(values[-length // 3 :])
        )
    return None


def _least_flat(run: _Run) -> int:
    """Rows without a change from which on a run is flat."""
    return max(FLAT_ROWS, int(FLAT_SHARE * max(run.given.total_steps / run.size, run.count)))


def _is_level(values: Column, spread: float) -> bool:
    trend, error = _line(values)
    half = len(values) // 2
    halves = abs(_mean(values[half:]) - _mean(values[:half]))
    scale = max(abs(_mean(values)), spread)
    return -2 * error <= trend <= FLAT_RISE * error and halves <= FLAT_ERRORS * error and error <= UNSEEN * scale


def _lengths(least: int, count: int) -> Iterator[int]:
    """Lengths of the last part, from the least that counts to the whole run."""
    length = least
    while length < count:
        yield length
        length = int(length * 1.1) + 1
    if count >= least:
        yield count


def _line(values: Column) -> tuple[float, float]:
    """How much the line of least squares rises over the values, and the standard error of that."""
    count = len(values)
    middle = (count - 1) / 2
    spread = count * (count * count - 1) / 12
    slope = sum((place - middle) * value for place, value in enumerate(values)) / spread
    return slope * (count - 1), _error(values, count // 3) * 2


def _error(values: Column, window: int) -> float:
    """Standard error of a mean over ``window`` neighboring values.

    From the means of neighbors where there are enough: prompts come in waves, and the values of one wave are alike.
    """
    slow = 0.0
    for size in (5, 10, 20, 40):
        blocks = [_mean(values[end - size : end]) for end in range(len(values), size - 1, -size)]
        if size > window or len(blocks) < 7:
            break
        slow = noise(blocks) * math.sqrt(size / window)
    return max(noise(values) / math.sqrt(window), slow)


def _mean(values: Column) -> float:
    return sum(values) / len(values) if values else 0.0


def _improving(run: _Run) -> RunVerdict | None:
    if run.given.is_finished:
        return None
    least = _least_flat(run)
    recent = run.reward[-least:]
    trend, error = _line(recent)
    if len(recent) < run.count and trend <= OLD_ERRORS * error and not _is_good(run, recent):
        return _better_held_out(run, "improving", run.count - least)  # what the reward gained was long ago
    return _better(run, "improving") or _better_held_out(run, "improving")


def _better_held_out(run: _Run, word: str, row: int = 0) -> RunVerdict | None:
    """Held-out accuracy rises from a row on while the reward may not: in self-play both sides improve."""
    if run.count < FLAT_ROWS or _held_out_rise(run, row) < RISEN_HELD_OUT:
        return None
    found = run.given.evaluations
    first = next(one for one in found if one.step >= run.step(row))
    return RunVerdict(word, first.step, found[-1].step, HELD_OUT, first.accuracy, found[-1].accuracy)


def _held_out_rise(run: _Run, row: int) -> float:
    """How much the line of least squares of held-out accuracy rises from a row on, in standard errors."""
    found = [one for one in run.given.evaluations if one.step >= run.step(row)]
    if len(found) < 3:
        return 0.0
    middle = _mean([float(one.step) for one in found])
    error = math.hypot(*((one.step - middle) * one.error for one in found))
    return sum((one.step - middle) * one.accuracy for one in found) / error if error else 0.0


def _is_falling(values: Column) -> bool:
    """Whether the last rows are as low as after a collapse: too few rows to call it one, and no success."""
    if len(values) < 2 * LOW_ROWS:
        return False
    before, last = median(values[-BEFORE - LOW_ROWS : -LOW_ROWS]), median(values[-FALLING:])
    floor = min(0.0, min(values))
    return before - last >= max(LOST * (before - floor), CLEAR * noise(values[:-LOW_ROWS])) > 0


def _better(run: _Run, word: str) -> RunVerdict | None:
    """The last rows are better than the first, whichever number of rows shows that best."""
    values, count = run.reward, run.count
    for window in sorted({7, 10, BEFORE, count // 4, count // 3}):
        if window < 7 or 2 * window > count:
            continue
        first, last = _mean(values[:window]), _mean(values[-window:])
        if last > first and last - first >= RISEN * _error(values, window) * math.sqrt(2) * (1 + EARLY / count):
            return RunVerdict(word, run.step(0), run.step(count - 1), "reward", first, last)
    return None


def _done(run: _Run) -> RunVerdict | None:
    if not run.given.is_finished:
        return None
    values = run.reward
    found = _better(run, "done") or _better_held_out(run, "done")
    if found is None and _is_good(run, values[-BEFORE:]):
        found = RunVerdict(
            "done", run.step(0), run.step(run.count - 1), "reward", _mean(values[:5]), _mean(values[-5:])
        )
    return found
