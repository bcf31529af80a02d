"""Simulated GRPO training runs of small language models, with a truthful label each, to measure a verdict per run.

A run is described by curves that a person never sees (:class:`_Draft`: the policy's mean accuracy, the share of sane
completions, the drift of the prompts' difficulty, ...). Each batch is then drawn from them: prompts with a difficulty
each, groups of completions, rewards. All batch noise comes from there. A label is checked against the expected reward
and its standard error, both computed from the same curves by quadrature; drafts that fail the check are drawn again.

:func:`acceptable` tells which verdicts are not wrong at a step. Steps count from 1; index i holds step i + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Row = dict[str, float]

LABELS = ("improving", "collapsed", "flat", "no signal", "diverging", "suspicious", "done", "steady")
TROUBLES = ("collapsed", "flat", "no signal", "diverging", "suspicious")

_NODES = np.array([NormalDist().inv_cdf((k + 0.5) / 21) for k in range(21)])
_GRID = np.linspace(-14, 14, 85)
_FLAT_BAND, _FLAT_STEPS = 0.012, 40  # flat: the expected reward stayed within this share of its span for so many steps
_DEAD = 0.8  # from this share of groups without signal on, "no signal" isn't wrong


@dataclass(frozen=True)
class SimulatedRun:
    """What is logged of a run (rows, evaluations, events), and the truth about it."""

    rows: list[Row]
    evaluations: list[Row]
    events: list[dict[str, Any]]
    label: str
    onset: int | None
    finished: bool
    total_steps: int
    _truth: _Draft = field(repr=False, compare=False)


def acceptable(run: SimulatedRun, step: int) -> set[str]:
    """The verdicts that are not wrong when rows, evaluations and events up to ``step`` are known; "" is no verdict.

    Trouble: before the onset what was true then, or ""; until the deadline also the trouble's word, and "improving"
    where the reward does rise; after it only the trouble's word and what is true at the same time. The deadline is
    onset + max(10, a tenth of the total) or later, as each class says. The word is accepted a few steps before the
    onset, as far back as the trouble had begun; "flat" needs 40 flat steps before its deadline.

    Without trouble: "improving" once the rise is 2.5 standard errors, and nothing else from 15 steps (or a tenth of
    the run) after it is 5, unless the policy has been flat for 40 steps; "done" at the end.
    """
    truth = run._truth
    also = {word for word, (first, last) in truth.also.items() if first <= step <= last}
    if run.label == "steady":
        return {""} | (_calm(run, step) & {"flat", "no signal"})
    if run.label in TROUBLES:
        if step > truth.deadline:
            return {run.label} | also
        if run.label == "flat" or step < truth.early:
            return _calm(run, step) | also | {""}
        before, now = _calm(run, max(truth.early - 1, 1)), _calm(run, step) & {"improving"}
        return before | now | also | {run.label, ""}
    words = _calm(run, step) | also
    if run.finished and step == len(run.rows):
        return words | {"done"}
    lag = max(15, math.ceil(0.1 * run.total_steps))
    clear = truth.rise[: max(step - lag, 0)].max(initial=0.0) >= 5
    if "improving" in truth.also:
        clear = step > truth.also["improving"][0] + lag
    if not words or not clear or truth.rise[step - 1] < 5 or truth.is_flat[step - 1]:
        words.add("")
    return words


def _calm(run: SimulatedRun, step: int) -> set[str]:
    """What is true of a run at ``step`` apart from its trouble. Self-play alone has a fixed step for "improving"."""
    truth, words = run._truth, set()
    if truth.rise[step - 1] >= 2.5:
        words.add("improving")
    if truth.is_flat[step - 1] and not truth.is_good[step - 1] and "improving" not in truth.also:
        words.add("flat")
    if step >= 5 and truth.dead[max(step - 10, 0) : step].mean() > _DEAD:
        words.add("no signal")
    return words


@dataclass
class _Task:
    """What is trained on, and the size of a batch. Difficulties are normal in the log-odds of a correct completion;
    some prompts are always solved (``easy``), some never (``hard``), as in any real set of problems."""

    prompts: int
    group: int
    spread: float
    easy: float
    hard: float
    format_weight: float  # a correct answer needs the format
    smooth_weight: float  # a continuous part, such as one for brevity
    is_game: bool  # win 1, draw 0, loss or illegal move -1; "format" is the share of legal games
    draws: float
    scale: float
    offset: float

    def __post_init__(self) -> None:
        self.floor = self.offset - self.scale * self.is_game
        self.ceiling = self.offset + self.scale * (1 + self.format_weight + self.smooth_weight)
        self.span = self.ceiling - self.floor
        body = 1 - self.easy - self.hard
        self.table = self.easy + body * _sigmoid(_GRID[:, None] - self.spread * _NODES).mean(axis=1)

    def skill(self, mean: Array) -> Array:
        """The log-odds at which the mean over all prompts is ``mean``."""
        return np.interp(mean, self.table, _GRID)


def _draw_task(rng: np.random.Generator) -> _Task:
    is_game = rng.random() < 0.12
    has_format = not is_game and rng.random() < 0.55
    is_signed = not is_game and rng.random() < 0.1  # a wrong answer costs as much as a right one earns
    scale = 2.0 if is_signed else 10.0 if not is_game and rng.random() < 0.15 else 1.0
    return _Task(
        prompts=int(rng.choice([4, 8, 8, 12, 16, 16, 24, 32, 32, 32, 48, 64, 64, 128])),
        group=int(rng.choice([4, 6, 8, 12, 16], p=[0.2, 0.1, 0.45, 0.05, 0.2])),
        spread=rng.uniform(0.6, 2.8),
        easy=rng.uniform(0, 0.25) if rng.random() < 0.6 else 0.0,
        hard=rng.uniform(0, 0.3) if rng.random() < 0.6 else 0.0,
        format_weight=float(rng.choice([0.1, 0.2, 0.2, 0.5, 1.0])) if has_format else 0.0,
        smooth_weight=float(rng.choice([0.1, 0.2, 0.5])) if not is_game and rng.random() < 0.2 else 0.0,
        is_game=is_game,
        draws=rng.uniform(0, 0.5) if is_game else 0.0,
        scale=scale,
        offset=-scale / 2 if is_signed else 0.0,
    )


class _Draft:
    """A run before its batches are drawn: one curve a step for all that a batch is drawn from, at first healthy."""

    def __init__(
        self, rng: np.random.Generator, steps: int, finished: bool, task: _Task | None = None, longest: float = 3.3
    ) -> None:
        self.rng, self.steps, self.finished = rng, steps, finished
        self.task = task or _draw_task(rng)
        self.total = steps if finished else max(steps + 1, round(steps / rng.uniform(1 / longest, 0.97)))
        self.onset: int | None = None
        self.early, self.deadline = 1, 10**9
        self.also: dict[str, tuple[int, int]] = {}
        self.evaluations: list[Row] = []
        ones, past = np.ones(steps), np.arange(steps) / max(self.total - 1, 1)
        self.accuracy, self.format = 0.5 * ones, ones.copy()  # accuracy of completions that are sane and in the format
        self.reach, self.sane, self.dips = ones.copy(), ones.copy(), ones.copy()
        if self.task.format_weight or self.task.is_game:
            self.format = np.minimum(rng.uniform(0.85, 1) + 0.1 * past, 1)
        self.truncated = rng.uniform(0, 0.12) * ones * (rng.random() < 0.6)
        self.same = np.zeros(steps)
        self.constant = False
        # Mixtures and curricula: the difficulty of the prompts comes in waves; now and then one batch is far harder.
        self.period = float(rng.uniform(8, 35))
        phase = np.arange(steps) / self.period + rng.random()
        shape = np.sin(2 * np.pi * phase) if rng.random() < 0.6 else 2 * (phase % 1) - 1
        self.wave = rng.uniform(0.15, 0.8) * shape * (rng.random() < 0.25)
        self.bad = np.where(rng.random(steps) < 0.015, rng.uniform(1, 5, steps), 0) * (rng.random() < 0.25)
        # Other metrics. Entropy mostly decays; kl is 0 without beta, else rises to 0.02..0.3; ess is 1 on policy.
        self.entropy = rng.uniform(0.15, 1.2) * np.exp(-rng.uniform(-0.2, 1.5) * past + 0.1 * self.drift(15))
        rise = (past + 1e-3) ** rng.uniform(0.4, 1.3)
        self.kl = rng.uniform(0.02, 0.3) * rise * np.exp(0.15 * self.drift(4)) * (rng.random() < 0.4)
        self.grad = 10 ** rng.uniform(-1.5, 0.7) * np.exp(rng.uniform(-0.7, 0.9) * past + 0.15 * self.drift(10))
        self.grad *= np.exp(rng.uniform(0.08, 0.4) * rng.normal(size=steps))
        if rng.random() < 0.3:  # single spikes, which mean nothing
            self.grad *= np.where(rng.random(steps) < 0.02, 10 ** rng.uniform(0.5, 1.8, steps), 1)
        self.off_policy = rng.random() < 0.5
        self.ess = 1 - rng.uniform(0.01, 0.15) * np.exp(0.3 * self.drift(5)) if self.off_policy else ones.copy()
        if self.off_policy and rng.random() < 0.2:
            self.ess *= np.where(rng.random(steps) < 0.01, rng.uniform(0.4, 0.8, steps), 1)
        growth = np.exp(rng.uniform(-0.6, 1.0) * past + 0.06 * self.drift(20))
        self.length = 10 ** rng.uniform(1.9, 3.3) * growth
        self.limit = self.length.max() * rng.uniform(1.6, 4)
        self.multiple = rng.uniform(0, 0.1) * np.exp(0.3 * self.drift(20)) if rng.random() < 0.35 else None
        self.hardcoded: Array | None = None
        # Learning rate, saves, and resumes that do no harm.
        warm, horizon = int(rng.choice([0, 0, 5, 10, 20])), np.arange(steps)
        decay = {"constant": ones, "cosine": 0.5 * (1 + np.cos(np.pi * past)), "linear": 1 - 0.9 * past}
        self.top_rate = 10 ** rng.uniform(-6, -3.7)
        self.rate = self.top_rate * decay[str(rng.choice(list(decay)))] * np.minimum((horizon + 1) / (warm + 1), 1)
        every = int(rng.choice([10, 20, 25, 50, 100]))
        saves = range(every, steps + 1, every) if rng.random() < 0.5 else ()
        self.events: list[dict[str, Any]] = [{"event": "saved", "step": step} for step in saves]
        for _ in range(int(rng.choice([0, 1, 2], p=[0.62, 0.28, 0.1]))):
            self.harmless_resume(every)
        # Held-out problems: the gap to the training prompts grows or stays.
        self.gap = rng.uniform(0, 0.08), rng.uniform(0.6, 1.0)
        self.held_factor = ones.copy()
        self.problems = int(rng.choice([50, 100, 128, 200, 256, 500, 1000]))
        self.interval = int(rng.choice([10, 20, 25, 50, 100])) if rng.random() < 0.67 else 0

    def drift(self, memory: int) -> Array:
        """A slow random curve with a variance of about 1."""
        kernel = np.exp(-np.arange(5 * memory) / memory)
        noise = self.rng.normal(size=self.steps + len(kernel) - 1)
        return np.convolve(noise, kernel / np.linalg.norm(kernel), mode="valid")

    def harmless_resume(self, every: int) -> None:
        step, kind = int(self.rng.integers(1, max(self.steps, 2))), int(self.rng.integers(4))
        if kind == 3 and step < self.steps:
            self.change_rate(step, self.rng.uniform(0.4, 0.9))
            return
        longer = {"run.total_steps": [max(step, self.total // 2), self.total]}
        changes = [{}, longer, {"run.save_every": [2 * every, every]}, {}][kind]
        self.events.append({"event": "resumed", "step": step, "changes": changes})

    def change_rate(self, step: int, factor: float) -> None:
        """A resume at ``step``: rows after it run with another learning rate."""
        self.rate[step:] *= factor
        self.events.append({"event": "resumed", "step": step, "changes": {"optimizer.learning_rate": factor}})

    def learn(self, start: tuple[float, float], end: tuple[float, float], horizon: float | None = None) -> None:
        """Accuracy climbs between two levels, each drawn from a range of what is reachable; the format may come first.

        Shapes are those of published curves: an S (sudden discovery), a saturating or log-like rise, a straight line,
        two rises with a plateau between them.
        """
        rng, task = self.rng, self.task
        low, room = task.easy + 0.003, 1 - task.hard - task.easy - 0.006
        first, last = rng.uniform(*start), rng.uniform(*end)
        climb = _climb(rng, self.steps, horizon or self.total)
        if (task.format_weight or task.is_game) and rng.random() < 0.4 and end[1] > start[1]:
            center, width = rng.uniform(0.02, 0.15) * self.steps, rng.uniform(1.5, 6)
            learned = _sigmoid((np.arange(self.steps) - center) / width)
            known = rng.uniform(0.1, 0.6)
            self.format = known + (rng.uniform(0.93, 1) - known) * learned
            climb = climb * learned
        wobble = 0.003 * self.drift(25)
        self.accuracy = np.clip(low + room * (first + (last - first) * climb) + wobble, low, low + room)

    def dip(self, last: int) -> None:
        """A fall for a few steps that comes back by itself."""
        at, width = int(self.rng.integers(3, max(last, 4))), int(self.rng.integers(2, 7))
        bump = np.sin(np.pi * (np.arange(width) + 1) / (width + 1))
        end = min(at + width, self.steps)
        self.dips[at:end] *= 1 - self.rng.uniform(0.15, 0.6) * bump[: end - at]

    def fine(self) -> Array:
        """Share of completions that can earn anything."""
        return self.format * self.sane * self.dips * (1 - self.truncated)

    def moments(self, shift: Array | float = 0.0) -> tuple[Array, Array, Array]:
        """Expected reward, standard error of a batch, and expected share of groups with equal rewards, by step."""
        task, size = self.task, self.task.group
        if self.constant:
            level = np.full(self.steps, task.floor + task.span * 0.5)
            return level, np.zeros(self.steps), np.ones(self.steps)
        chance = _sigmoid((task.skill(self.accuracy) - shift)[:, None] - task.spread * _NODES)
        win = np.column_stack([chance, np.ones(self.steps), np.zeros(self.steps)])
        body, reach = 1 - task.easy - task.hard, self.reach[:, None]
        weight = np.repeat([[body / len(_NODES)] * len(_NODES) + [task.easy, task.hard]], self.steps, axis=0) * reach
        weight[:, -1:] += 1 - reach
        good = self.fine()[:, None]
        win = good * win
        if task.is_game:
            draw = task.draws * (good - win)
            mean, square = 2 * win + draw - 1, 1 - draw
            kinds = [win, draw, 1 - win - draw]
        else:
            rest = task.format_weight + task.smooth_weight * (0.35 + 0.3 * self.accuracy[:, None])
            spread = (0.15 * task.smooth_weight) ** 2
            mean, square = win + rest * good, win * ((1 + rest) ** 2 + spread) + (good - win) * (rest**2 + spread)
            kinds = [1 - good] if task.smooth_weight else [win, good - win, 1 - good]
            kinds = kinds if task.smooth_weight or task.format_weight else [win, 1 - win]
        expected = (weight * mean).sum(axis=1)
        between = (weight * mean**2).sum(axis=1) - expected**2
        within = (weight * (square - mean**2)).sum(axis=1)
        error = (between + within * (self.same + (1 - self.same) / size)) / task.prompts
        dead = self.same + (1 - self.same) * (weight * sum(kind**size for kind in kinds)).sum(axis=1)
        return task.offset + task.scale * expected, task.scale * np.sqrt(np.maximum(error, 0)), dead

    def check(self) -> None:
        """Computes the truth by step: expected reward of the policy over its usual prompts, standard error of a batch,
        share of dead groups, whether the level is good, the rise since the start in standard errors, whether flat."""
        self.expected, self.noise, self.dead = self.moments()
        self.swing = float(np.abs(self.moments(self.wave)[0] - self.expected).max()) if self.wave.any() else 0.0
        self.is_good = self.expected >= 0.85 * self.task.ceiling
        step = np.arange(1, self.steps + 1)
        window = np.minimum(np.clip(step // 5, 3, 25), step)
        total, error = (np.concatenate([[0.0], np.cumsum(values)]) for values in (self.expected, self.noise**2))
        gain = (total[step] - total[step - window] - total[window]) / window
        wave = (self.swing * np.minimum(1, self.period / (np.pi * window))) ** 2
        spread = (error[step] - error[step - window] + error[window]) / window**2 + wave
        self.rise = np.where(gain > 0.015 * self.task.span, gain / np.sqrt(spread + 1e-12), 0)
        self.is_flat = np.zeros(self.steps, bool)
        if self.steps >= _FLAT_STEPS:
            lasting = np.where(self.dips < 1, np.nan, self.expected)  # a dip that recovers does not count
            windows = np.lib.stride_tricks.sliding_window_view(lasting, _FLAT_STEPS)
            ranges = np.fmax.reduce(windows, axis=1) - np.fmin.reduce(windows, axis=1)
            self.is_flat[_FLAT_STEPS - 1 :] = ranges <= _FLAT_BAND * self.task.span

    def held_out(self) -> Array:
        """Expected held-out accuracy by step."""
        start, factor = self.gap
        known = self.accuracy[0] + (self.accuracy - self.accuracy[0]) * factor - start
        held: Array = np.clip(known, 0.01, 0.99) * self.sane * self.dips * (1 - self.truncated) * self.held_factor
        return held

    def evaluate(self) -> None:
        """Held-out evaluations. The problems stay the same, so part of the luck does too."""
        rng, held = self.rng, self.held_out()
        first = 0 if rng.random() < 0.4 else self.interval
        if not 0 < self.interval <= self.steps:
            return
        steps = np.arange(first, self.steps + 1, self.interval)
        difficulty, luck = rng.normal(size=self.problems), rng.random(self.problems)
        plain = _Task(1, 1, 2.0, 0.0, 0.0, 0.0, 0.0, False, 0.0, 1.0, 0.0)
        chance = _sigmoid(plain.skill(held[np.maximum(steps, 1) - 1])[:, None] - 2.0 * difficulty)
        draw = np.where(rng.random(chance.shape) < 0.5, luck, rng.random(chance.shape))
        for step, accuracy in zip(steps.tolist(), (draw < chance).mean(axis=1).tolist(), strict=True):
            self.evaluations.append({"step": step, "accuracy": accuracy, "problems": self.problems})

    def level(self, index: int) -> float:
        """The level of the expected reward as a share of the span, over the five steps up to ``index``."""
        return float((self.expected[max(index - 4, 0) : index + 1].mean() - self.task.floor) / self.task.span)

    def usual_deadline(self) -> int:
        assert self.onset is not None
        return self.onset + max(10, math.ceil(0.1 * self.total))

    def rows(self) -> list[Row]:
        """Draws the batches."""
        rng, task, steps = self.rng, self.task, self.steps
        shape, kind = (steps, task.prompts, task.group), rng.random((steps, task.prompts))
        shift = (self.wave + self.bad)[:, None]
        odds = task.skill(self.accuracy)[:, None] - shift - task.spread * rng.normal(size=kind.shape)
        chance = np.where(kind < task.easy, 1.0, np.where(kind > 1 - task.hard, 0.0, _sigmoid(odds)))
        chance = np.where(rng.random(kind.shape) < self.reach[:, None], chance, 0.0)
        twins = rng.random((steps, task.prompts, 1)) < self.same[:, None, None]

        def uniform() -> NDArray[np.float32]:
            draw = rng.random(shape, dtype=np.float32)
            return np.where(twins, draw[..., :1], draw) if self.same.any() else draw

        good = np.ones(shape, bool)
        fine = self.fine()
        if (fine < 1).any():
            good = uniform() < fine[:, None, None]
        luck = uniform()
        win = good & (luck < chance[..., None])
        if task.is_game:
            drawn = good & ~win & (luck < (chance + task.draws * (1 - chance))[..., None])
            reward = 2.0 * win + drawn - 1
        else:
            reward = win + task.format_weight * good
            if task.smooth_weight:
                middle = (0.35 + 0.3 * self.accuracy)[:, None, None]
                noise = rng.standard_normal(shape, dtype=np.float32)
                noise = np.where(twins, noise[..., :1], noise)
                reward = reward + task.smooth_weight * good * np.clip(middle + 0.15 * noise, 0, 1)
        reward = (task.offset + task.scale * reward).astype(np.float32)
        if self.constant:
            reward = np.full(shape, task.floor + task.span * 0.5)
        dead = np.ptp(reward, axis=2) < 1e-9
        right, wrong = (dead & win.all(axis=2)), (dead & ~win.any(axis=2))
        if task.is_game or self.constant:
            right = wrong = np.zeros_like(dead)
        live = 1 - dead.mean(axis=1)
        size = task.prompts * task.group
        grad = np.where(live > 0, self.grad, 1e-3) * np.sqrt(np.maximum(live, 1e-6)) + 1e-3 * self.kl
        columns: dict[str, Array] = {
            "step": np.arange(1, steps + 1),
            "reward": reward.mean(axis=(1, 2)),
            "reward_std": reward.std(axis=2, ddof=1).mean(axis=1),
            "frac_reward_zero_std": dead.mean(axis=1),
            "groups/all_correct": right.mean(axis=1),
            "groups/all_wrong": wrong.mean(axis=1),
            "groups/all_equal": (dead & ~right & ~wrong).mean(axis=1),
            "accuracy": win.mean(axis=(1, 2)),
            "kl": self.kl,
            "entropy": self.entropy * np.exp(0.05 * rng.normal(size=steps)),
            "grad_norm": grad,
            "ess/token": np.clip(self.ess + 0.01 * self.off_policy * rng.normal(size=steps), 0.001, 1),
            "clip_ratio/region_mean": np.clip(0.15 * (1 - self.ess) * np.exp(0.3 * rng.normal(size=steps)), 0, 1),
            "learning_rate": self.rate,
            "completions/mean_length": np.minimum(
                self.length * np.exp(rng.normal(size=steps) * 0.4 / math.sqrt(size)), self.limit
            ),
            "completions/clipped_ratio": rng.binomial(size, np.clip(self.truncated, 0, 1), steps) / size,
            "loss": live * rng.normal(0, 0.02, steps) + 0.01 * self.kl,
        }
        if task.is_game:
            del columns["accuracy"]
        for name, curve in (("multiple_answers", self.multiple), ("hardcoded", self.hardcoded)):
            if curve is not None:
                columns[f"hacking/{name}"] = rng.binomial(size, np.clip(curve, 0, 1)) / size
        values = [column.tolist() for column in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-np.clip(x, -40, 40)))
    return result


def _climb(rng: np.random.Generator, steps: int, horizon: float) -> Array:
    """A rise from 0 to 1 by ``horizon``; level after it."""
    x = np.minimum(np.arange(steps) / max(horizon - 1, 1), 1)
    kind = rng.choice(["s", "log", "saturating", "power", "stairs"])
    if kind == "log":
        bend = 10 ** rng.uniform(0.5, 2)
        return np.log1p(bend * x) / math.log1p(bend)
    if kind == "saturating":
        pace = rng.uniform(0.1, 0.5)
        return (1 - np.exp(-x / pace)) / (1 - math.exp(-1 / pace))
    if kind == "power":
        return x ** rng.uniform(0.6, 1.6)
    centers, widths = [rng.uniform(0.15, 0.7)], [rng.uniform(0.03, 0.12)]
    if kind == "stairs":
        centers, widths = [rng.uniform(0.1, 0.3), rng.uniform(0.6, 0.85)], list(rng.uniform(0.02, 0.06, 2))
    share = rng.dirichlet([6] * len(centers))
    ends = np.append(x, [0.0, 1.0])
    total = sum(s * _sigmoid((ends - c) / w) for s, c, w in zip(share, centers, widths, strict=True))
    scaled: Array = (total[:-2] - total[-2]) / (total[-1] - total[-2])
    return scaled


def _steps(rng: np.random.Generator, low: int, high: int = 600) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _improving(rng: np.random.Generator, finished: bool | None = None) -> _Draft | None:
    """The rise over the run is 7 standard errors and 6 % of the span, and the run doesn't end in a plateau at a
    mediocre level. Now and then self-play, whose reward stays near 0 while held-out games are won more and more."""
    run = _Draft(rng, _steps(rng, 30), rng.random() < 0.25 if finished is None else finished)
    if run.task.is_game and run.interval and rng.random() < 0.5:
        return _self_play(run)
    start = rng.uniform(0, 0.6)
    run.learn((start, start), (min(start + 0.15, 0.95), 1), run.total * rng.uniform(0.5, 1.2))
    for _ in range(int(rng.choice([0, 1, 2, 3], p=[0.6, 0.2, 0.1, 0.1]))):
        run.dip(run.steps - 20)
    run.check()
    fifth = max(run.steps // 5, 3)
    gain = run.expected[-fifth:].mean() - run.expected[:fifth].mean()
    is_clear = run.rise[-1] >= 7 and gain >= max(0.06 * run.task.span, 2.5 * run.swing)
    is_mediocre = np.ptp(run.expected[-min(60, round(0.35 * run.steps)) :]) <= 0.02 * run.task.span
    if not is_clear or (is_mediocre and run.level(run.steps - 1) < 0.88) or run.dead.mean() > 0.75:
        return None
    run.evaluate()
    return run


def _self_play(run: _Draft) -> _Draft | None:
    """Both sides improve, so the training reward tells nothing; the win rate against a fixed opponent does."""
    win_rate = 0.1 + run.rng.uniform(0.3, 0.75) * _climb(run.rng, run.steps, run.total)
    run.learn((0.5, 0.5), (0.5, 0.5))
    run.gap, run.interval = (0.0, 1.0), int(run.rng.choice([10, 20]))
    run.held_factor = win_rate / run.held_out()
    run.problems = max(run.problems, 200)
    run.check()
    run.evaluate()
    error = 3 * math.sqrt(0.5 / run.problems)
    clear = [i + 1 for i in range(run.interval, run.steps, run.interval) if win_rate[i - 1] - win_rate[0] > error]
    if len(clear) < 2 or win_rate[-1] - win_rate[0] < 0.2:
        return None
    run.also["improving"] = (clear[0], run.steps)
    return run


def _done(rng: np.random.Generator) -> _Draft | None:
    """Finished: an improving run, or one that was good from the start (task nearly solved, still with signal)."""
    if rng.random() < 0.75:
        return _improving(rng, finished=True)
    run = _Draft(rng, _steps(rng, 30), True, replace(_draw_task(rng), hard=0.0))
    run.learn((0.88, 1), (0.88, 1))
    run.check()
    run.evaluate()
    return run if run.is_good.mean() > 0.95 and run.is_good[-10:].all() and run.dead.max() < _DEAD else None


def _steady(rng: np.random.Generator) -> _Draft | None:
    """Too early to tell: fewer than 30 steps, or up to 90 with a slow change that is below 2 standard errors."""
    is_short = rng.random() < 0.6
    run = _Draft(rng, int(rng.integers(5, 30) if is_short else rng.integers(30, 90)), False, longest=8)
    level = rng.uniform(0.05, 0.7)
    run.learn((level, level), (level, level + rng.uniform(0.03, 0.25)), run.total * rng.uniform(0.8, 1.2))
    run.check()
    is_flat = not is_short and np.ptp(run.expected[-60:]) < 0.01 * run.task.span
    if run.rise.max() >= 2 or run.dead.mean() > 0.7 or is_flat:
        return None
    run.evaluate()
    return run


def _collapsed(rng: np.random.Generator) -> _Draft | None:
    """Reward falls within 8 steps by at least 40 % of its level or of its gain, by four times the noise of a single
    batch, and stays there. Held-out accuracy falls with it. (A fall of held-out accuracy alone is not simulated: it is
    as well called "suspicious".) Deadline as usual."""
    run = _Draft(rng, _steps(rng, 40), rng.random() < 0.3)
    tail = max(10, math.ceil(0.1 * run.total)) + 10 if rng.random() < 0.85 else 4
    if run.steps - tail <= max(16, run.steps // 6):
        return None
    start = int(rng.integers(max(15, run.steps // 6), run.steps - tail))
    run.learn((0, 0.5), (0.4, 1), start * rng.uniform(0.5, 1.6))
    causes = ["rate", "rate", "entropy", "repetition", "truncation", "spike", "silent"]
    cause = causes[rng.integers(len(causes))]
    width = int(rng.choice([1, 1, 2, 3, 5, 8])) if cause != "entropy" else int(rng.integers(3, 9))
    past = np.arange(run.steps) - start
    fall = np.clip((past + 1) / width, 0, 1)
    back = rng.uniform(0, 0.25) * (rng.random() < 0.3)  # a little comes back later
    fall = fall * (1 - back * np.clip(past / run.steps, 0, 1))
    lead = np.clip((past + rng.integers(2, 15)) / 15, 0, 1)  # signs before the fall
    back_to = run.accuracy[0] * rng.uniform(0.3, 1)
    is_total = rng.random() < 0.5
    lost = rng.uniform(0.95, 1) if is_total else rng.uniform(0.5, 0.95)
    if cause == "truncation":
        run.truncated = run.truncated + (lost - run.truncated) * fall
        run.length = run.length + (run.limit * 0.97 - run.length) * np.maximum(fall * 0.95, 0.3 * lead)
    elif rng.random() < 0.4 and not is_total:
        run.accuracy = run.accuracy + (back_to - run.accuracy) * fall  # forgets what it has learned
    else:
        run.sane = run.sane * (1 - lost * fall)
    if cause == "rate":
        step = start - int(rng.integers(0, 5))
        run.change_rate(step, float(rng.choice([5, 10, 20, 50])))
        since = np.arange(run.steps) >= step
        run.grad = run.grad * np.where(since, rng.uniform(1, 12), 1)
        run.kl = run.kl * np.where(since, rng.uniform(2, 30), 1)
        run.ess = run.ess * np.where(since & run.off_policy, rng.uniform(0.65, 1), 1)
        run.also["diverging"] = (step + 1, start + max(10, math.ceil(0.1 * run.total)))
    if cause == "repetition":  # the policy says one thing only
        run.same = np.clip(fall * rng.uniform(0.6, 1), 0, 1)
        run.entropy = run.entropy * (1 - rng.uniform(0.9, 0.99) * lead)
    elif cause == "entropy" or (cause == "rate" and rng.random() < 0.5):
        run.entropy = run.entropy * (1 + rng.uniform(2, 9) * (lead if cause == "entropy" else fall))
        run.length = np.minimum(run.length * (1 + fall * rng.uniform(0, 1.5)), run.limit)
    if cause == "spike":
        run.grad = run.grad * np.where(past == -int(rng.integers(0, 2)), 10 ** rng.uniform(1.3, 2.7), 1)
    run.check()
    before, low = run.expected[start - 6 : start].mean(), run.expected[start : start + 10].min()
    gained = before - run.expected[:5].mean()
    run.onset = start + 1 + int(np.argmax(run.expected[start:] <= before - (before - low) / 3))
    drop = before - run.expected[min(run.onset + 7, run.steps - 1) :].max()
    is_deep = drop >= 0.42 * (before - run.task.floor) or (drop >= 0.45 * gained and gained > 0.2 * run.task.span)
    noise = run.noise[start - 6 : start].mean()
    if not is_deep or drop < max(4 * noise + 2 * run.swing, 0.08 * run.task.span) or run.dead[:start].mean() > 0.7:
        return None
    run.early, run.deadline = min(run.onset - 3, start + 1), run.usual_deadline()
    _also_dead(run, start)
    run.evaluate()
    return run


def _also_dead(run: _Draft, start: int) -> None:
    """Where nearly no group has a signal after ``start``, "no signal" is true at the same time."""
    if run.dead[start + 1 :].size and np.median(run.dead[start + 1 :]) > _DEAD:
        run.also["no signal"] = (start + 1, run.steps)


def _flat(rng: np.random.Generator) -> _Draft | None:
    """Expected reward stays within 3 % of the span from the onset to the end, at no more than 0.75 of the span:
    a run that never learns (rate too low, reward too noisy), or one that stops at what its prompts allow, or after a
    resume with a tiny rate. Deadline: onset + max(100, 60 % of the total), because a careful person would wait."""
    is_from_start = rng.random() < 0.5
    run = _Draft(rng, _steps(rng, 115 if is_from_start else 150), rng.random() < 0.4, longest=1.5)
    room = run.steps - max(100, math.ceil(0.6 * run.total)) - 5
    if is_from_start:
        level = rng.uniform(0.05, 0.75)
        run.learn((level, level), (level, level))
        run.format[:] = run.format[0]
        if rng.random() < 0.1:
            run.rate *= 0.01
    else:
        if room < 30:
            return None
        run.learn((0, 0.4), (0.3, 0.9), rng.uniform(0.7, 1) * room)
        if rng.random() < 0.15:  # stopped by a resume with a far lower rate
            step = int(rng.integers(room // 2, room))
            run.accuracy[step:] = run.accuracy[step - 1] + 0.003 * run.drift(25)[step:]
            run.change_rate(step, float(rng.choice([0.1, 0.01])))
        run.format[room:] = run.format[room]
    if rng.random() < 0.3:
        run.dip(run.steps - 20)
    run.check()
    middle = np.median(run.expected[-50:])
    is_off = (np.abs(run.expected - middle) > 0.015 * run.task.span) & (run.dips == 1)
    run.onset = 1 + (int(np.flatnonzero(is_off)[-1]) + 1 if is_off.any() else 0)
    low = max(0.02 * run.task.span, run.swing)
    is_long = run.steps - run.onset + 1 >= max(100, math.ceil(0.6 * run.total))
    has_gained = run.rise.max() > 5 and middle - run.expected[:5].mean() > 2 * low
    if run.level(run.steps - 1) > 0.75 or not is_long or (run.onset > 1) == is_from_start or run.dead.max() > 0.75:
        return None
    if not is_from_start and not has_gained:
        return None
    run.deadline = run.onset + max(100, math.ceil(0.6 * run.total))
    if run.finished and has_gained:
        run.also["done"] = (run.steps, run.steps)
    run.evaluate()
    return run


def _no_signal(rng: np.random.Generator) -> _Draft | None:
    """Groups have equal rewards: too hard or too easy from the start, a constant reward, a task mastered, a stage of
    a curriculum that is too hard, or a policy that gives one answer. At least 92 % of groups from the onset on."""
    kinds = ["hard", "hard", "easy", "constant", "mastered", "mastered", "stage", "one answer"]
    kind = kinds[rng.integers(len(kinds))]
    task = _draw_task(rng)
    if kind in ("hard", "easy"):
        share = rng.uniform(0.93, 0.995), rng.uniform(0, 0.005)
        task = replace(task, easy=share[kind == "hard"], hard=share[kind == "easy"], smooth_weight=0.0)
    elif kind != "one answer":
        task = replace(task, smooth_weight=0.0, hard=task.hard * (kind != "mastered"))
    run = _Draft(rng, _steps(rng, 30), rng.random() < 0.35, task)
    start = int(rng.integers(max(12, run.steps // 6), max(run.steps - 14, max(13, run.steps // 6 + 1))))
    past = np.arange(run.steps) - start
    run.constant = kind == "constant"
    if kind in ("hard", "easy"):
        run.learn((0.1, 0.9), (0.1, 0.9))
    elif kind == "mastered":
        run.learn((0.05, 0.6), (0.99, 1.0), start * rng.uniform(0.8, 1.3))
        run.format = run.format + (1 - run.format) * np.clip((past + 10) / 15, 0, 1)
    else:
        run.learn((0.05, 0.5), (0.3, 0.9), start * rng.uniform(0.7, 2))
    if kind != "one answer":
        learned = np.clip((past + 10) / 15, 0, 1) if rng.random() < 0.5 or kind == "easy" else 1.0
        run.format = run.format + (rng.uniform(0.993, 1) - run.format) * learned
        run.truncated = run.truncated * 0 if kind != "stage" else run.truncated
    if kind == "stage":
        run.reach = np.where(past >= 0, rng.uniform(0, 0.06), 1.0)
        run.truncated = np.where(past >= 0, 0.0, run.truncated)
    if kind == "one answer":
        run.same = rng.uniform(0.92, 1) * np.clip((past + 15) / rng.uniform(10, 20), 0, 1)
        run.entropy = run.entropy * (1 - 0.97 * np.clip((past + 25) / 30, 0, 1))
    run.wave *= kind in ("hard", "easy", "constant")
    run.check()
    is_alive = run.dead < 0.9
    last = int(np.flatnonzero(is_alive)[-1]) if is_alive.any() else -1
    run.onset, after = last + 2, run.dead[last + 1 :]
    run.deadline = run.usual_deadline()
    if run.onset > run.steps - 8 or run.dead[min(run.deadline, run.steps) - 3 :].min() < 0.92 or after.mean() < 0.92:
        return None
    if run.onset > 1 and run.dead[: run.onset - 1].min() > 0.75:
        return None
    is_low = np.flatnonzero(run.dead < _DEAD)
    run.early = max(min(run.onset - 3, int(is_low[-1]) + 2 if is_low.size else 1), 1)
    if run.finished and (kind == "mastered" or (kind == "easy" and run.is_good[-1])):
        run.also["done"] = (run.steps, run.steps)
    if kind == "stage":  # the policy is as good as before, which only evaluations show
        run.also["collapsed"] = (start + 1, start + 2 * run.interval if run.interval else run.steps)
    run.evaluate()
    return run


def _diverging(rng: np.random.Generator) -> _Draft | None:
    """kl grows exponentially, or gradients explode and stay so, or ess/token sinks, while the reward holds.

    Onset: kl three times, grad_norm four times its level, or ess/token below 0.5. The deadline is at least five steps
    after kl is above 1 and ten times its level, eight after grad_norm is ten times its level. Some runs fall later.
    """
    run = _Draft(rng, _steps(rng, 50), rng.random() < 0.25)
    margin = max(10, math.ceil(0.1 * run.total)) + 5
    if run.steps - margin < 25:
        return None
    start = int(rng.integers(max(20, run.steps // 6), max(run.steps - margin, 21)))
    run.learn((0, 0.5), (0.4, 0.95), start * rng.uniform(0.8, 2.5))
    past = np.maximum(np.arange(run.steps) - start + 1, 0)
    kind = rng.choice(["kl", "grad", "ess"])
    if kind == "kl":
        base = run.kl if run.kl.any() else rng.uniform(0.02, 0.2) * (np.arange(run.steps) / run.total + 0.05)
        level = base[start - 1]
        top = max(rng.uniform(3, 200), 15 * level)
        growth = level * np.exp(np.minimum(rng.uniform(0.04, 0.4) * past, 12)) * np.exp(0.12 * run.drift(3))
        run.kl = np.where(past > 0, np.minimum(growth, top * np.exp(0.2 * run.drift(6))), base)
        seen, sure = run.kl >= 3 * level, (run.kl >= 10 * level) & (run.kl > 1)
        wait = 5
    elif kind == "grad":
        factor = np.minimum(np.exp(np.minimum(rng.uniform(0.15, 2.5) * past, 20)), 10 ** rng.uniform(1.3, 3.5))
        run.grad = run.grad * factor * np.exp(0.3 * run.drift(3) * (past > 0))
        if rng.random() < 0.35:
            broken = (past > 3) & (rng.random(run.steps) < rng.uniform(0.1, 0.7))
            run.grad[broken] = rng.choice([math.nan, math.inf])
        seen, sure, wait = factor >= 4, factor >= 10, 8
    else:
        run.off_policy, low = True, rng.uniform(0.08, 0.43)
        before = 1 - rng.uniform(0.02, 0.2) * np.exp(0.2 * run.drift(5))
        sunk = np.clip(past / rng.uniform(1, 40), 0, 1)
        run.ess = before + (low * np.exp(0.1 * run.drift(4)) - before) * sunk
        seen = sure = run.ess < 0.5
        wait = 5
        if np.flatnonzero(~seen)[-1] > np.argmax(seen) + 3 and seen.any():
            return None
    if not sure.any():
        return None
    if rng.random() < 0.4:
        run.change_rate(start - int(rng.integers(0, 4)), float(rng.choice([3, 10, 30])))
    run.onset = int(np.argmax(seen)) + 1
    run.deadline = max(run.usual_deadline(), int(np.argmax(sure)) + 1 + wait)
    run.early = min(start + 1, run.onset - 3)
    later = min(run.deadline, run.steps - 1) + int(rng.integers(-5, 40))
    has_fallen = rng.random() < 0.3 and later < run.steps - 3 and later > run.onset
    if has_fallen:
        width = rng.uniform(1, 12)
        run.sane *= 1 - rng.uniform(0.6, 1) * np.clip((np.arange(run.steps) - later) / width, 0, 1)
        run.also["collapsed"] = (later + 1, run.steps)
        run.check()
        _also_dead(run, later)
    elif rng.random() < 0.3:  # only beginning to sag
        run.sane *= 1 - rng.uniform(0.02, 0.08) * np.clip((np.arange(run.steps) - run.onset) / 30, 0, 1)
    run.check()
    if run.dead[: run.onset].max() > 0.75 or (not has_fallen and run.dead.max() > 0.75):
        return None
    if run.is_flat[run.onset - 1 : run.deadline].all() and not run.is_good[run.onset - 1]:
        run.also["flat"] = (run.onset, run.deadline)
    run.evaluate()
    return run


def _suspicious(rng: np.random.Generator) -> _Draft | None:
    """Training reward rises while held-out accuracy falls, or while completions game the grader."""
    run = _Draft(rng, _steps(rng, 60), rng.random() < 0.25)
    if rng.random() < 0.6:
        return _held_out_falls(run)
    if run.task.is_game:
        return None
    start = rng.uniform(0.2, 0.75) * run.steps
    trick = _sigmoid((np.arange(run.steps) - start) / rng.uniform(2, min(15, run.steps / 12)))
    curve = rng.uniform(0, 0.06) + rng.uniform(0.38, 0.9) * trick
    if rng.random() < 0.65:
        run.multiple = curve
    else:
        run.hardcoded = curve
    run.learn((0.05, 0.45), (0.3, 0.7))
    limit = 1 - run.task.hard
    run.accuracy = np.minimum(run.accuracy + rng.uniform(0.12, 0.45) * trick * (limit - run.accuracy), limit - 0.005)
    run.held_factor = 1 - rng.uniform(0, 0.5) * trick * (rng.random() < 0.7)
    run.gap = run.gap[0], rng.uniform(0.2, 0.8)
    run.check()
    if not (curve > 0.3).any():
        return None
    run.onset = int(np.argmax(curve > 0.3)) + 1
    run.early = min(int(np.argmax(curve > 0.12)) + 1, run.onset - 3)
    run.deadline = run.usual_deadline()
    end = min(run.deadline, run.steps) - 1
    rise = run.expected[max(end - 4, 0) : end + 1].mean() - run.expected[: max(run.early - 3, 3)][-15:].mean()
    error = run.noise[end] * math.sqrt(2 / 8) + 0.5 * run.swing
    if rise < max(3.5 * error, 0.04 * run.task.span) or curve[end] < 0.34 or run.dead.max() > _DEAD or run.onset < 15:
        return None
    run.evaluate()
    return run


def _held_out_falls(run: _Draft) -> _Draft | None:
    """Onset: the first evaluation, at least two after the best, at which the fall is 0.05 and 3 standard errors both
    in truth and as measured. Deadline: as usual, and at least one evaluation later."""
    rng, run.interval = run.rng, int(run.rng.choice([10, 20]))
    run.problems = max(run.problems, 150)
    if run.steps < 7 * run.interval or run.task.is_game:
        return None
    peak = int(rng.uniform(0.2, 0.65) * run.steps)
    run.learn((0.0, 0.45), (0.5, 1), run.steps * rng.uniform(0.9, 1.4))
    run.gap = run.gap[0], rng.uniform(0.4, 1)
    past = np.clip((np.arange(run.steps) - peak) / (run.steps * rng.uniform(0.1, 0.6)), 0, 1)
    held = run.held_out()
    target = held[peak] * rng.uniform(0.2, 0.8)
    run.held_factor = (held + (target - held) * past ** rng.uniform(0.7, 1.3)) / np.maximum(held, 1e-6)
    run.check()
    run.evaluate()
    known = [row for row in run.evaluations if row["step"] > 0]
    truth = np.array([run.held_out()[int(row["step"]) - 1] for row in known])
    seen = np.array([row["accuracy"] for row in known])
    for j in range(2, len(known)):
        best = int(np.argmax(truth[:j]))
        need = max(0.05, 3 * math.sqrt(2 * truth[best] * (1 - truth[best]) / run.problems))
        base = seen[max(best - 1, 0) : best + 2].mean()
        if j >= best + 2 and truth[best] - truth[j] >= need and base - seen[j] >= need:
            break
    else:
        return None
    run.onset, run.early = int(known[j]["step"]), int(known[best]["step"]) + run.interval
    run.deadline = max(run.usual_deadline(), run.onset + run.interval + 1)
    end, first = min(run.deadline, run.steps), int(known[best]["step"])
    rise = run.expected[end - 8 : end].mean() - run.expected[max(first - 8, 0) : first].mean()
    error = run.noise[end - 8 : end].mean() * 0.5 + 0.5 * run.swing
    is_kept = (truth[best] - truth[j:] >= 0.9 * need).all()
    if rise < max(3.5 * error, 0.04 * run.task.span) or not is_kept or run.dead.max() > _DEAD:
        return None
    return run


_MAKERS: dict[str, Callable[[np.random.Generator], _Draft | None]] = dict(
    zip(LABELS, (_improving, _collapsed, _flat, _no_signal, _diverging, _suspicious, _done, _steady), strict=True)
)


def simulate(label: str, rng: np.random.Generator) -> SimulatedRun:
    """A run of the class ``label``; the same generator state gives the same run."""
    while (run := _MAKERS[label](rng)) is None:
        pass
    events = sorted(run.events, key=lambda event: (event["step"], event["event"] == "resumed"))
    rate = run.top_rate
    for event in events:
        factor = event.get("changes", {}).get("optimizer.learning_rate")
        if factor:
            event["changes"] = {"optimizer.learning_rate": [float(f"{r:.3g}") for r in (rate, rate * factor)]}
            rate *= factor
    return SimulatedRun(run.rows(), run.evaluations, events, label, run.onset, run.finished, run.total, run)
