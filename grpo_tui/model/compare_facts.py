"""A run's configuration and evaluations, for comparing it with others. No Textual."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from grpo_train.run_dir.lazy_dataclass import dataclass
from grpo_tui.model.formatting import one_line

MAX_CONFIG = 1 << 16
"""Characters of a configuration that are read: the engine's have about 3,000."""
MAX_KEYS = 2_000
MAX_DEPTH = 16
MAX_VALUE = 200
CODE = "code"
COMMIT_LENGTH = 7


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
    baselines: Mapping[str, Mapping[str, Accuracy]] = field(default_factory=dict)
    """Dataset to the name of a model without a run (``@OWNER--NAME``) to its result."""


def facts_of(run: str, reply: Mapping[str, Any]) -> Facts:
    """From a reply to ``show_run``. A configuration takes some milliseconds."""
    config, problem = {}, ""
    try:
        config = flat_config(str(reply.get("config_text") or ""))
    except ValueError as error:
        problem = str(error)
    launch, status = reply.get("launch") or {}, reply.get("status") or {}
    if weights := launch.get("ckpt"):
        config["starting weights"] = _text(weights)
    version, commit = status.get("version"), status.get("commit")
    if version or commit:
        config[CODE] = _text(" ".join(str(part) for part in (version, str(commit or "")[:COMMIT_LENGTH]) if part))
    accuracies = _accuracies(run, reply.get("evaluations") or ())
    return Facts(config, problem, accuracies, _baselines(reply.get("baselines") or ()))


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
