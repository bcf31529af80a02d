"""Short names of runs: what differs among the runs shown, and what is the same in all of them. No Textual."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from grpo_tui.model.formatting import shortened

Config: TypeAlias = Mapping[str, object]
MOST_KEYS = 3
"""Keys in a name."""
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
    return Names(short, " · ".join(dict.fromkeys(part for part in [*same, *common] if part)))


def stamp_of(run: str) -> str:
    """The time in a default name: ``11-20 22:10:41``; "" for a given name."""
    match = _STAMP.fullmatch(run)
    return f"{match[1]} {match[2]}:{match[3]}:{match[4]}" if match else ""


def fitting_name(name: str, width: int) -> str:
    """A name that fits. A default name, which is a time, becomes that time."""
    if len(name) > width and (time := stamp_of(name)):
        return time if len(time) <= width else time[:11]
    return shortened(name, width)


def _keys(configs: Sequence[Config]) -> list[str]:
    """At most MOST_KEYS keys that tell the configurations apart."""
    if len(configs) < 2:
        return []
    names = dict.fromkeys(key for config in configs for key in config)
    values = {key: [config.get(key) for config in configs] for key in names if not key.startswith(NEVER)}
    differing = [key for key, found in values.items() if any(value != found[0] for value in found)]
    first = [key for key in FIRST if key in differing]
    rest = sorted((key for key in differing if key not in FIRST), key=lambda key: -len(set(map(str, values[key]))))
    chosen: list[str] = []
    told_apart = 1
    for key in first + rest:
        count = len({tuple(str(values[one][i]) for one in [*chosen, key]) for i in range(len(configs))})
        if count > told_apart:
            chosen.append(key)
            told_apart = count
        if len(chosen) == MOST_KEYS or told_apart == len(configs):
            break
    return chosen


def _shown(key: str, value: object) -> str:
    text = _text(value)
    if key == "model.backbone":
        return base_name(text)
    if key == "model.adapter":
        return ADAPTERS.get(text, text)
    if key in BARE:
        return text
    return f"{SHORT.get(key, key.rpartition('.')[2])} {text}"


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        mantissa, _, exponent = f"{value:.4g}".partition("e")
        if not exponent and value and abs(value) < 1e-3:
            mantissa, _, exponent = f"{value:.3e}".partition("e")
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return str(value)


def base_name(path: str) -> str:
    """The last part of a model's path or hub name."""
    return path.rstrip("/").rpartition("/")[2]


def _same(configs: Sequence[Config], key: str) -> str:
    found = {_text(config.get(key)) for config in configs}
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
