"""Evaluated steps compared, problem by problem. Torch-free.

Each summary.json gets ``previous`` (the nearest earlier step of the same tree) and ``base`` (step 0), each

    {"name", "step", "n", "difference": {value, low, high}, "gained": [index, …], "lost": [index, …], "p_value"}

or null where there is none with the same problems and settings. They are a pure function of what lies in the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_train.evaluation.plan import EvalError, find_run
from grpo_train.evaluation.report.statistics import Paired, compare
from grpo_train.evaluation.results.stored import (
    AGAIN,
    DamagedError,
    name_and_step,
    read_rows,
    read_summary,
    steps_of,
)
from grpo_train.run_dir import list_evaluations
from grpo_train.run_dir.files import atomic_write, to_json

Summary = dict[str, Any]


def compared(folder: Path, label: str) -> tuple[list[Summary], dict[str, tuple[int, str]]]:
    """The summaries of all complete steps of a tree, by step; comparisons that are new are written into them.

    The second result has the names whose files are damaged: step and status. Nothing is compared with those.
    """
    found: list[tuple[Path, Summary]] = []
    damaged: dict[str, tuple[int, str]] = {}
    answers: dict[Path, dict[int, list[bool]]] = {}
    for place in steps_of(folder, label):
        try:
            if summary := read_summary(place):
                answers[place] = right(place)
                found.append((place, summary))
        except DamagedError as error:
            name, step = name_and_step(place, label)
            damaged[name] = (step, f"damaged: {error}; {AGAIN}")
    found.sort(key=lambda each: order(each[1]))
    for number, (place, summary) in enumerate(found):
        earlier = [each for each in found[:number] if comparable(each[1], summary)]
        before = {
            "previous": next((each for each in reversed(earlier) if each[1]["metrics"]["step"] < _step(summary)), None),
            "base": next((each for each in earlier if _step(each[1]) == 0), None),
        }
        new = dict(summary)
        for word, other in before.items():
            new[word] = None
            if other is not None and other[0] != place:
                new[word] = _said(other[1], compare(answers[place], answers[other[0]]))
        if new != summary:
            atomic_write(place / "summary.json", to_json(new) + "\n")
        found[number] = (place, new)
    return [summary for _, summary in found], damaged


def steps_compared(root: Path, training_run: str, names: Sequence[str], datasets: Sequence[str] = ()) -> list[str]:
    """Each named step against the first one, a line each, in every tree (or those of ``datasets``) that has it.

    What cannot be compared is told after those lines. ``names``: "10" is step_10; others are names given to
    ``--ckpt-path``. Raises EvalError where nothing can be compared, RunDirError, ConfigError.
    """
    run, _, _ = find_run(root, training_run)
    wanted = list(dict.fromkeys(f"step_{int(name)}" if name.isdecimal() else name for name in names))
    if len(wanted) < 2:
        raise EvalError("--steps wants at least two, the first being what the others are compared with: 0,10,20")
    lines: list[str] = []
    problems: list[str] = []
    labels: list[str] = []
    for evaluation in list_evaluations(run.root, run.name):
        folder, label = run.root / "eval_runs" / evaluation["name"], str(evaluation["status"]["dataset"])
        labels.append(label)
        places = [folder / f"{name}_{label}" for name in wanted]
        if not (places[0] / "summary.json").exists() or (datasets and label not in datasets):
            continue
        for place, name in zip(places[1:], wanted[1:], strict=True):
            try:
                lines.append(f"{label} {name}: {_against(place, places[0], name, wanted[0], label)}")
            except EvalError as error:
                problems.append(str(error))
    if not lines and not problems:
        on = f" on {', '.join(datasets)}" if datasets else ""
        have = f"; there are evaluations on {', '.join(labels)}" if labels and not {*datasets} & {*labels} else ""
        problems.append(f"{wanted[0]} of {run.name} has not been evaluated{on} (grpo-train eval{have})")
    if not lines:
        raise EvalError("; ".join(problems))
    return lines + problems


def _against(place: Path, reference: Path, name: str, reference_name: str, label: str) -> str:
    """One step against another in a line. Raises EvalError."""
    try:
        summary, other = read_summary(place), read_summary(reference)
        if not summary or not other:
            raise EvalError(f"{name} has not been evaluated on {label} (grpo-train eval)")
        if not comparable(other, summary):
            unlike = f"{reference_name} and {name} were evaluated on {label} under different settings"
            raise EvalError(f"{unlike}: evaluate both alike (grpo-train eval)")
        return words({"it": _said(other, compare(right(place), right(reference)))}, "it")
    except DamagedError as error:
        raise EvalError(f"{error}; {AGAIN}") from error


def right(place: Path) -> dict[int, list[bool]]:
    """{problem index: [correct of each sample]} of a step's completions. Raises DamagedError."""
    found: dict[int, list[bool]] = {}
    for row in read_rows(place):
        found.setdefault(row["index"], []).append(row["correct"])
    return found


def comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """The same problems, asked and decoded alike, judged alike."""
    return _conditions(one) == _conditions(other)


def order(summary: Mapping[str, Any]) -> tuple[int, str]:
    """By step, then name."""
    return _step(summary), str(summary["metrics"]["name"])


def words(summary: Mapping[str, Any], against: str) -> str:
    """A comparison in a line; "" where there is none."""
    found = summary.get(against)
    if not found:
        return ""
    gap, (gained, lost) = found["difference"], (len(found["gained"]), len(found["lost"]))
    return (
        f"{gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}] against {found['name']}: "
        f"{gained} gained, {lost} lost of {found['n']} (McNemar p = {found['p_value']:.3g})"
    )


def _said(other: Mapping[str, Any], paired: Paired) -> dict[str, Any]:
    facts = {name: list(value) if isinstance(value, Sequence) else value for name, value in asdict(paired).items()}
    return {"name": other["metrics"]["name"], "step": _step(other), **facts}


def _step(summary: Mapping[str, Any]) -> int:
    return int(summary["metrics"]["step"])


def _conditions(summary: Mapping[str, Any]) -> tuple[Any, Any] | None:
    key = summary.get("key") or {}
    samples = {name: value for name, value in key.get("samples", {}).items() if name != "weights"}
    return (samples, key.get("grading")) if samples else None
