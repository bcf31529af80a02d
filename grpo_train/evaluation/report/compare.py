"""Comparisons of evaluated steps, of one run or of two, problem by problem. Torch-free.

Each summary.json holds ``previous`` (against the nearest earlier step of the tree) and ``base`` (against step 0):

    {"name", "step", "n", "difference": {value, low, high}, "gained": [index, …], "lost": [index, …], "p_value"}

or null if no such step has the same problems and settings. Both are a pure function of the tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grpo_train.evaluation.baselines import find_evaluated, is_baseline
from grpo_train.evaluation.report.statistics import Paired, compare_paired
from grpo_train.evaluation.request import EvalError
from grpo_train.evaluation.results.stored import (
    RERUN_HINT,
    DamagedError,
    name_and_step,
    read_completion_rows,
    read_summary,
    steps_of,
)
from grpo_train.evaluation.targets import Unfinished
from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.display import fraction, signed
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import atomic_write, to_json

Summary = dict[str, Any]


@dataclass(frozen=True)
class StepComparison:
    """One evaluated step against another."""

    dataset: str
    name: str
    reference: str
    accuracy: float
    n: int
    """Problems."""
    difference: float
    """In accuracy, with its 95 % interval."""
    low: float
    high: float
    gained: int
    """Problems solved by ``name`` but not by ``reference``."""
    lost: int
    p_value: float
    step: int = 0
    run: str = ""
    """The run of ``name`` where it is another run than the reference's."""

    def text(self) -> str:
        """The comparison in one line."""
        difference, low, high = (signed(value, fraction) for value in (self.difference, self.low, self.high))
        return (
            f"{difference} [{low}, {high}] against {self.reference}: "
            f"{self.gained} gained, {self.lost} lost of {self.n} (McNemar p = {self.p_value:.3g})"
        )


def update_comparisons(folder: Path, label: str) -> tuple[list[Summary], list[Unfinished]]:
    """The summaries of a tree's intact steps, by step, with up-to-date comparisons; and the damaged steps.

    Changed summaries are written back.
    """
    found: list[tuple[Path, Summary]] = []
    damaged: list[Unfinished] = []
    verdicts: dict[Path, dict[int, list[bool]]] = {}
    for path in steps_of(folder, label):
        try:
            if summary := read_summary(path):
                verdicts[path] = correct_samples(path)
                found.append((path, summary))
        except DamagedError as error:
            damaged.append(Unfinished(*name_and_step(path, label), "damaged", f"{error}; {RERUN_HINT}", error.code))
    found.sort(key=lambda each: (_step(each[1]), str(each[1]["metrics"]["name"])))
    for position, (path, summary) in enumerate(found):
        earlier = [each for each in found[:position] if comparable(each[1], summary)]
        references = {
            "previous": next((each for each in reversed(earlier) if _step(each[1]) < _step(summary)), None),
            "base": next((each for each in earlier if _step(each[1]) == 0), None),
        }
        new = dict(summary)
        for entry, other in references.items():
            new[entry] = _entry(other[1], compare_paired(verdicts[path], verdicts[other[0]])) if other else None
        if new != summary:
            atomic_write(path / "summary.json", to_json(new) + "\n")
        found[position] = (path, new)
    return [summary for _, summary in found], damaged


def compare_steps(
    root: Path, training_run: str, names: Sequence[str], datasets: Sequence[str] = ()
) -> tuple[list[StepComparison], list[UserError]]:
    """Each named step against the first one, in every tree (or those of ``datasets``) that has it.

    Also returns an error for each step that cannot be compared. ``names``: "10" is step_10, "latest" and "final" are
    steps of the run; others are names given to ``--ckpt-path``. Raises EvalError if nothing can be compared,
    RunDirError, ConfigError.
    """
    run = find_evaluated(root, training_run)
    wanted = list(dict.fromkeys(_result_names(run, names)))
    if len(wanted) < 2:
        raise EvalError("--steps needs at least two steps; the others are compared with the first: 0,10,20")
    found: list[StepComparison] = []
    errors: list[UserError] = []
    labels: list[str] = []
    for evaluation in list_evaluations(run.root, run.name):
        folder, label = run.root / "eval_runs" / evaluation["name"], evaluation["dataset"]
        labels.append(label)
        reference, *others = (folder / f"{name}_{label}" for name in wanted)
        if not os.path.lexists(reference / "summary.json") or (datasets and label not in datasets):
            continue
        for path, name in zip(others, wanted[1:], strict=True):
            try:
                found.append(compare_folders(path, reference, name, wanted[0], label))
            except UserError as error:
                errors.append(error)
    if not found and not errors:
        on = f" on {', '.join(datasets)}" if datasets else ""
        available = f"; evaluated datasets: {', '.join(labels)}" if labels and not {*datasets} & {*labels} else ""
        raise EvalError(f"{wanted[0]} of {run.name} has not been evaluated{on} (grpo-train eval{available})")
    if not found:
        raise EvalError("; ".join(map(str, errors)))
    return found, errors


def compare_runs(
    root: Path, training_run: str, others: Sequence[str], names: Sequence[str] = (), datasets: Sequence[str] = ()
) -> tuple[list[StepComparison], list[UserError]]:
    """Each evaluated step of ``others`` (or those of ``names``) against the same step of ``training_run``.

    A baseline has no steps: it is compared with every step of the other side. Only problems that both were evaluated on
    are compared; the runs' seeds may differ. Also returns an error for each step that cannot be compared. Raises
    EvalError if there is no common step, RunDirError, ConfigError.
    """
    reference = _Verdicts(root, training_run, datasets)
    wanted = set(_result_names(find_evaluated(root, training_run), names))
    found: list[StepComparison] = []
    errors: list[UserError] = []
    for other in others:
        theirs = _Verdicts(root, other, datasets)
        for (label, name), before in _pairs(theirs, reference):
            if wanted and not wanted & {name, before}:
                continue
            try:
                found.append(_compare_results(theirs, reference, label, name, before))
            except UserError as error:
                errors.append(error)
    if not found and not errors:
        raise EvalError(f"no step is evaluated for {reference.run} and another of the runs (grpo-train eval)")
    return found, errors


def _result_names(run: RunDir, names: Sequence[str]) -> list[str]:
    """The names of results that ``names`` of a command line are. Raises RunDirError."""
    steps = [str(run.checkpoint(name).step) if name in ("latest", "final") else name for name in names]
    return [f"step_{int(name)}" if name.isdecimal() else name for name in steps]


def _pairs(theirs: _Verdicts, reference: _Verdicts) -> Iterator[tuple[tuple[str, str], str]]:
    """Each result of a run with the name of the result of the reference that it is compared with."""
    any_step = is_baseline(theirs.run) or is_baseline(reference.run)
    for label, name in theirs.steps:
        for other_label, before in reference.steps:
            if label == other_label and (any_step or name == before):
                yield (label, name), before


def _compare_results(theirs: _Verdicts, reference: _Verdicts, label: str, name: str, before: str) -> StepComparison:
    """Raises EvalError, DamagedError."""
    summary, other = theirs.summary(label, name), reference.summary(label, before)
    if not comparable(other, summary):
        raise _not_comparable(theirs.named(name), reference.named(before), label, summary, other)
    paired = compare_paired(theirs.correct(label, name), reference.correct(label, before))
    found = replace(_comparison(summary, _entry(other, paired)), dataset=label, run=theirs.run)
    return replace(found, reference=reference.run) if is_baseline(reference.run) else found


class _Verdicts:
    """The evaluated steps of a run; the verdicts of each are read once."""

    def __init__(self, root: Path, training_run: str, datasets: Sequence[str]) -> None:
        """Raises RunDirError, ConfigError."""
        run = find_evaluated(root, training_run)
        self.run = run.name
        self.steps: dict[tuple[str, str], Path] = {}
        """Dataset and name of a step to its results."""
        for evaluation in list_evaluations(run.root, run.name):
            folder, label = run.root / "eval_runs" / evaluation["name"], evaluation["dataset"]
            if not datasets or label in datasets:
                for path in steps_of(folder, label):
                    self.steps[label, name_and_step(path, label)[0]] = path
        self._correct: dict[Path, dict[int, list[bool]]] = {}

    def named(self, name: str) -> str:
        """A result in a message."""
        return self.run if is_baseline(self.run) else f"{name} of {self.run}"

    def summary(self, label: str, name: str) -> Summary:
        """Raises DamagedError."""
        path = self.steps[label, name]
        if (summary := read_summary(path)) is None:
            raise DamagedError(f"{path / 'summary.json'} is missing; {RERUN_HINT}")
        return summary

    def correct(self, label: str, name: str) -> dict[int, list[bool]]:
        """Raises DamagedError."""
        path = self.steps[label, name]
        if path not in self._correct:
            self._correct[path] = correct_samples(path)
        return self._correct[path]


def compare_folders(path: Path, reference: Path, name: str, reference_name: str, label: str) -> StepComparison:
    """Compare two result directories. Raises EvalError, DamagedError."""
    try:
        summary, other = read_summary(path), read_summary(reference)
        if not summary or not other:
            raise EvalError(f"{name} has not been evaluated on {label} (grpo-train eval)")
        if not comparable(other, summary):
            raise _not_comparable(reference_name, name, label, other, summary)
        return _comparison(summary, _entry(other, compare_paired(correct_samples(path), correct_samples(reference))))
    except DamagedError as error:
        raise DamagedError(f"{error}; {RERUN_HINT}") from error


def stored_comparisons(summary: Mapping[str, Any]) -> list[StepComparison]:
    """The comparisons ``previous`` and ``base`` of a summary; one where both are the same step."""
    entries = [entry for name in ("previous", "base") if (entry := summary.get(name))]
    return list(dict.fromkeys(_comparison(summary, entry) for entry in entries))


def correct_samples(folder: Path) -> dict[int, list[bool]]:
    """{problem index: [correct of each sample]} of a step's completions. Raises DamagedError."""
    found: dict[int, list[bool]] = {}
    for row in read_completion_rows(folder):
        found.setdefault(row["index"], []).append(row["correct"])
    return found


def comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two summaries have the same problems, decoding parameters and grader.

    Weights are what is compared; the seed only picks the random numbers of the samples.
    """
    return _conditions(one) == _conditions(other)


def _not_comparable(name: str, other_name: str, label: str, one: Summary, other: Summary) -> EvalError:
    """The error for results of different settings, which it names."""
    (samples, grading), (other_samples, other_grading) = (_conditions(each) or ({}, None) for each in (one, other))
    decoding, other_decoding = samples.get("decoding") or {}, other_samples.get("decoding") or {}
    names = sorted(key for key in {*decoding, *other_decoding} if decoding.get(key) != other_decoding.get(key))
    names += ["data or prompt template"] if samples.get("problems") != other_samples.get("problems") else []
    names += ["grader"] if grading != other_grading else []
    return EvalError(
        f"{name} and {other_name} were evaluated on {label} under different settings ({', '.join(names) or 'split'}); "
        "evaluate both with the same settings (grpo-train eval)"
    )


def _conditions(summary: Mapping[str, Any]) -> tuple[Any, Any] | None:
    key = summary.get("key") or {}
    samples = {name: value for name, value in key.get("samples", {}).items() if name not in ("weights", "seed")}
    return (samples, key.get("grading")) if samples else None


def _comparison(summary: Mapping[str, Any], entry: Mapping[str, Any]) -> StepComparison:
    metrics, gap = summary["metrics"], entry["difference"]
    return StepComparison(
        dataset=metrics.get("dataset", ""),
        name=metrics["name"],
        reference=entry["name"],
        accuracy=metrics["accuracy"],
        n=entry["n"],
        difference=gap["value"],
        low=gap["low"],
        high=gap["high"],
        gained=len(entry["gained"]),
        lost=len(entry["lost"]),
        p_value=entry["p_value"],
        step=_step(summary),
    )


def _entry(other: Mapping[str, Any], paired: Paired) -> dict[str, Any]:
    """A comparison as stored in summary.json."""
    fields = {name: list(value) if isinstance(value, Sequence) else value for name, value in asdict(paired).items()}
    return {"name": other["metrics"]["name"], "step": _step(other), **fields}


def _step(summary: Mapping[str, Any]) -> int:
    return int(summary["metrics"]["step"])
