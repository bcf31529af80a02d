"""Names and columns of the list of runs: their texts, and what they sort by. No Textual."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from grpo_train.run_dir.display import STATES, metric_text, setting
from grpo_train.run_dir.verdict import VERDICTS
from grpo_tui.box.formatting import (
    counted,
    ending,
    fraction,
    metric_value,
    money,
    one_line,
    short_age,
    short_duration,
    shortened,
)
from grpo_tui.box.rows import RunRow, transfer_label
from grpo_tui.box.run_facts import ARROWS, CELLS, KnownFacts, Trends
from grpo_tui.box.store import Store, cost, eta, step_of, took

Config: TypeAlias = Mapping[str, object]
MOST_KEYS = 3
"""Keys in a name."""
MOST_KEY_COLUMNS = 6
"""Keys that have a column without being chosen."""
FIRST = (
    "optimizer.learning_rate", "run.seed", "task.name", "task.level", "task.digits", "model.backbone", "model.adapter",
    "model.lora_rank", "algorithm.loss_type", "algorithm.beta", "rollout.num_generations", "rollout.buffer_size",
    "algorithm.num_iterations", "optimizer.warmup_steps", "run.total_steps",
)  # fmt: skip
"""Keys that are tried first, in this order."""
NEVER = (
    "tracking.", "eval.", "notify.", "workflow.", "budget.", "backup.", "run.save_every", "run.eval_every", "run.keep_",
    "run.max_restarts", "run.restart_wait", "run.stall_timeout", "run.auto_resume", "run.nproc",
)  # fmt: skip
"""Beginnings of keys that say how a run is watched, not what it is."""
SHORT = {"optimizer.learning_rate": "lr", "model.lora_rank": "r", "rollout.num_generations": "samples"}
BARE = ("task.name", "model.backbone", "model.adapter", "algorithm.loss_type")
"""Keys whose value says enough."""
SAME = ("task.name", "model.backbone", "model.adapter")
ADAPTERS = {"lora": "LoRA", "none": "full", "full": "full"}
_STAMP = re.compile(r"run_\d{4}-(\d\d-\d\d)_(\d\d)-(\d\d)-(\d\d)(?:_\d+)?")
_PART = re.compile(r"(?<!\d[eE])[-_]+")
"""Between the parts of a name; not within a number such as 3.0e-5."""


@dataclass(frozen=True)
class Names:
    """Short names, and what they leave out."""

    short: Mapping[str, str] = field(default_factory=dict)
    """Full name to short name."""
    same: str = ""
    """What is the same in all runs: ``gsm8k · Qwen2.5-1.5B · LoRA``."""
    differing: tuple[str, ...] = ()
    """The keys whose values differ between the runs, the most telling ones first, …"""
    keys: tuple[str, ...] = ()
    """… and those that are not in every name."""


def short_names(runs: Sequence[str], configs: Mapping[str, Config]) -> Names:
    """A default name, which is a time, becomes what differs in the configuration; a given name loses the parts that all
    given names have. Names stay different."""
    stamped = [run for run in runs if _STAMP.fullmatch(run) and configs.get(run)]
    given = [run for run in runs if not _STAMP.fullmatch(run)]
    keys = _keys([configs[run] for run in stamped])
    short = {run: " · ".join(_shown(key, configs[run].get(key)) for key in keys) for run in stamped if keys}
    parts, common = _without_common(given)
    short |= parts
    counts: dict[str, int] = {}
    for name in short.values():
        counts[name] = counts.get(name, 0) + 1
    taken = {*runs}
    for run, name in short.items():
        if counts[name] > 1 or name in taken:
            short[run] = f"{name} · {stamp_of(run)}" if stamp_of(run) else run
    known = [configs[run] for run in runs if configs.get(run)]
    same = [_same(known, key) for key in SAME] if len(known) > 1 else []
    named, differing = keys if len(stamped) == len(runs) else [], tuple(_differing(known))
    same_text = " · ".join(dict.fromkeys(part for part in [*same, *common] if part))
    return Names(short, same_text, differing, tuple(key for key in differing if key not in named))


def stamp_of(run: str) -> str:
    """The time in a default name: ``11-20 22:10:41``; "" for a given name."""
    match = _STAMP.fullmatch(run)
    return f"{match[1]} {match[2]}:{match[3]}:{match[4]}" if match else ""


def fitting_name(name: str, width: int) -> str:
    """A name that fits. A default name, which is a time, becomes that time."""
    if len(name) > width and (time := stamp_of(name)):
        return time if len(time) <= width else time[:11]
    if len(name) > width and 1 < width <= 8:  # the end tells names apart
        return "…" + ending(name, width - 1)
    return shortened(name, width)


def _keys(configs: Sequence[Config]) -> list[str]:
    """At most MOST_KEYS keys that tell the configurations apart."""
    chosen: list[str] = []
    told_apart = 1
    for key in _differing(configs):
        count = len({tuple(str(config.get(one)) for one in [*chosen, key]) for config in configs})
        if count > told_apart:
            chosen.append(key)
            told_apart = count
        if len(chosen) == MOST_KEYS or told_apart == len(configs):
            break
    return chosen


def _differing(configs: Sequence[Config]) -> list[str]:
    """The keys that differ, the most telling ones first."""
    names = dict.fromkeys(key for config in configs for key in config if not key.startswith(NEVER))
    counts = {key: len({str(config.get(key)) for config in configs}) for key in names}
    differing = [key for key, count in counts.items() if count > 1]
    rest = sorted((key for key in differing if key not in FIRST), key=lambda key: -counts[key])
    return [key for key in FIRST if key in differing] + rest


def _shown(key: str, value: object) -> str:
    text = setting(value)
    if key == "model.backbone":
        return base_name(text)
    if key == "model.adapter":
        return ADAPTERS.get(text, text)
    if key in BARE:
        return text
    return f"{SHORT.get(key, key.rpartition('.')[2])} {text}"


def base_name(path: str) -> str:
    """The last part of a model's path or hub name."""
    return path.rstrip("/").rpartition("/")[2]


def _same(configs: Sequence[Config], key: str) -> str:
    found = {setting(config.get(key)) for config in configs}
    return _shown(key, next(iter(configs))[key]) if len(found) == 1 and configs[0].get(key) is not None else ""


def _without_common(given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Given names without the parts (between ``-`` and ``_``) that all of them begin or end with, and those parts."""
    if len(given) < 2:
        return {}, []
    split = [_PART.split(name) for name in given]
    least = min(map(len, split)) - 1  # each keeps a part
    head = next((i for i in range(least) if len({parts[i] for parts in split}) > 1), max(0, least))
    tail = next((i for i in range(least - head) if len({parts[-1 - i] for parts in split}) > 1), max(0, least - head))
    if head and not all(any(map(str.isalpha, "".join(parts[head : len(parts) - tail]))) for parts in split):
        head -= 1  # a number alone says little: seed_0
    if not head and not tail:
        return {}, []
    short: dict[str, str] = {}
    for name in given:
        spans = [match.span() for match in _PART.finditer(name)]
        start = spans[head - 1][1] if head else 0
        end = spans[-tail][0] if tail else len(name)
        short[name] = name[start:end]
    if any(not part for part in short.values()) or len(set(short.values())) < len(given):
        return {}, []
    return short, split[0][:head] + split[0][len(split[0]) - tail :]


VALUE_WIDTH = 8
"""Cells of a metric."""
TEXT_WIDTH = 18
"""Maximum cells of a config value or a state."""
DATASET_WIDTH = 12
NOTE_WIDTH = 30
"""Cells that a note takes from other columns; it gets more where there is room."""
KEY_RANK = 9
"""Of the columns of the first keys that differ: they say more than the best reward, and less than the cost, …"""
TELLING_KEYS = 3
"""… and how many these are; …"""
LAST_RANK = 13
"""… the others come behind the note."""
DEFAULT = ("state", "verdict", "step", "eta", "reward", "trend", "held_out", "took", "cost", "age")


@dataclass(frozen=True)
class Cells:
    """Where the columns read."""

    store: Store
    facts: KnownFacts
    trends: Trends


@dataclass(frozen=True)
class Column:
    """One column. ``value`` is what it sorts by; None is always last."""

    id: str
    title: str
    rank: int
    """The higher, the sooner it leaves a narrow terminal."""
    text: Callable[[Cells, RunRow], str]
    value: Callable[[Cells, RunRow], Any]
    width: int = 0
    """Cells of every text; 0 = as many as the longest text has."""
    is_left: bool = False


def _steps(cells: Cells, row: RunRow) -> str:
    step = step_of(cells.store, row)
    return f"{step}/{row.total_steps}" if row.total_steps is not None else str(step)


def _reward(cells: Cells, row: RunRow) -> str:
    """The smoothed reward with its direction; until the box has sent it, that of the last step with ``~``."""
    trend, value = cells.trends.of(row.name), _smoothed(cells, row)
    is_last = value is not None and (trend is None or trend.last is None)
    return f"{metric_value(value)} {'~' if is_last else trend.arrow if trend is not None and trend.arrow else ' '}"


def _smoothed(cells: Cells, row: RunRow) -> float | None:
    trend = cells.trends.of(row.name)
    return row.reward if trend is None or trend.last is None else trend.last


def _direction(cells: Cells, row: RunRow) -> int | None:
    trend = cells.trends.of(row.name)
    return ARROWS.index(trend.arrow) if trend is not None and trend.arrow else None


def _curve(cells: Cells, row: RunRow) -> str:
    trend = cells.trends.of(row.name)
    return "" if trend is None else trend.curve


def _held_out(cells: Cells, row: RunRow) -> str:
    if row.held_out is None:
        return ""
    dataset = row.held_out.dataset
    return f"{fraction(row.held_out.accuracy)} {dataset[:DATASET_WIDTH]}"


def _best_held_out(cells: Cells, row: RunRow) -> str:
    found = row.held_out
    if found is None or found.best is None or found.best_step is None:
        return ""
    return f"{fraction(found.best)} at {found.best_step}"


def _best(cells: Cells, row: RunRow) -> str:
    trend = cells.trends.of(row.name)
    if trend is None or trend.best is None:
        return ""
    return metric_value(trend.best) + (f" at {trend.best_step}" if trend.best_step is not None else "")


def _best_value(cells: Cells, row: RunRow) -> float | None:
    trend = cells.trends.of(row.name)
    return None if trend is None else trend.best


def _cost(cells: Cells, row: RunRow) -> str:
    dollars = cost(cells.store, row)
    return money(dollars).removeprefix("$")


def verdict_label(row: RunRow) -> str:
    """``▼ collapsed @41``, with the step since when a run is not well; "" where there is nothing to say.

    No signal is said as which way: ``∅ all wrong @41``.
    """
    verdict = row.verdict
    if verdict is None:
        return ""
    word = verdict.how if verdict.word == "no signal" and verdict.how.startswith("all ") else verdict.word
    return f"{verdict.mark} {word}" + (f" @{verdict.since}" if verdict.tone != "good" else "")


def _urgency(cells: Cells, row: RunRow) -> int | None:
    return None if row.verdict is None else list(VERDICTS).index(row.verdict.word)


def backup_label(row: RunRow) -> str:
    """State of a run's backup, with a sign that needs no color; of a command at work on it or failed, that."""
    if row.transfer is not None:
        return transfer_label(row.transfer)
    if row.backup is None:
        return "– none"
    if row.backup.same_disk:
        return "= same disk"
    if behind := row.backup.behind:
        return f"▲ {counted(behind, 'step')} behind"
    return f"✔ step {row.backup.step}" if row.backup.step else "✔ logs"


def backup_word(row: RunRow) -> str:
    """State of a run's backup, for filters: ``none``, ``same disk``, ``behind`` or ``complete``."""
    if row.backup is None:
        return "none"
    return "same disk" if row.backup.same_disk else "behind" if row.backup.behind else "complete"


def _started(cells: Cells, row: RunRow) -> str:
    return "" if row.launched_at is None else time.strftime("%m-%d %H:%M", time.localtime(row.launched_at))


def _state_order(cells: Cells, row: RunRow) -> int:
    return list(STATES).index(row.shown_state) if row.shown_state in STATES else len(STATES)


KNOWN = {
    column.id: column
    for column in (
        Column("name", "name", 0, lambda c, r: r.name, lambda c, r: r.name.lower(), is_left=True),
        Column(
            "state", "state", 4, lambda c, r: shortened(r.label[1], TEXT_WIDTH), _state_order,
            is_left=True,
        ),
        Column("verdict", "verdict", 2, lambda c, r: verdict_label(r), _urgency, is_left=True),
        Column("step", "step", 0, _steps, lambda c, r: step_of(c.store, r)),
        Column(
            "eta", "ETA", 5, lambda c, r: short_duration(eta(c.store, r)),
            lambda c, r: eta(c.store, r), 6,
        ),
        Column("reward", "avg reward", 1, _reward, _smoothed, VALUE_WIDTH + 1),
        Column("trend", "trend", 7, _curve, _direction, CELLS, is_left=True),
        Column(
            "held_out", "held-out", 6, _held_out, lambda c, r: r.held_out.accuracy if r.held_out else None, is_left=True
        ),
        Column(
            "held_out_step", "at step", 6, lambda c, r: str(r.held_out.step) if r.held_out else "",
            lambda c, r: r.held_out.step if r.held_out else None,
        ),
        Column(
            "best_held_out", "best held-out", 10, _best_held_out, lambda c, r: r.held_out.best if r.held_out else None
        ),
        Column("best", "best avg", 10, _best, _best_value),
        Column(
            "last", "last", 10, lambda c, r: metric_value(r.reward) if r.reward is not None else "",
            lambda c, r: r.reward, VALUE_WIDTH - 1,
        ),
        Column(
            "took", "took", 11, lambda c, r: short_duration(took(c.store, r)),
            lambda c, r: took(c.store, r), 6,
        ),
        Column("cost", "cost $", 8, _cost, lambda c, r: cost(c.store, r)),
        Column("age", "updated", 7, lambda c, r: short_age(c.store.row_age(r)), lambda c, r: c.store.row_age(r), 4),
        Column("note", "note", 12, lambda c, r: r.note, lambda c, r: r.note or None, is_left=True),
        Column(
            "backup", "backup", 6, lambda c, r: backup_label(r), lambda c, r: r.backup.behind if r.backup else None,
            is_left=True,
        ),
        Column("start", "start", 13, _started, lambda c, r: r.launched_at, 11),
    )
}  # fmt: skip
"""The columns that every run has, besides the metrics and config keys."""
BACKUP = "backup"
"""Shown without being chosen where a run of the box has a backup."""


def column(name: str, rank: int = 2) -> Column:
    """A column by its id: a known one, else a metric or a config key of this rank."""
    if name in KNOWN:
        return KNOWN[name]
    title = SHORT.get(name, name if "/" in name else name.rpartition(".")[2])
    return Column(name, title, rank, lambda c, r: _fact(c, r, name), lambda c, r: fact_value(c, r, name))


def fact_value(cells: Cells, row: RunRow, name: str) -> Any:
    """The last value of a metric, else a value of a run's configuration; None without either.

    A name that is both, such as ``learning_rate``, is the metric; ``optimizer.learning_rate`` is what is configured.
    """
    value = cells.facts.metric(row.name, name)
    return cells.facts.config(row.name, name) if value is None else value


def _fact(cells: Cells, row: RunRow, name: str) -> str:
    value = fact_value(cells, row, name)
    if value is None:
        return ""
    if cells.facts.metric(row.name, name) is not None:
        return metric_text(name, value)
    return one_line(base_name(str(value)) if name.endswith("backbone") else setting(value))[:TEXT_WIDTH]


def sort_key(value: Any) -> tuple[bool, Any]:
    """A key under which numbers and texts compare."""
    return (True, value.lower()) if isinstance(value, str) else (False, value)
