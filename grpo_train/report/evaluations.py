"""Held-out evaluations of runs, with intervals and comparisons problem by problem. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grpo_train.evaluation.baselines import TARGET
from grpo_train.evaluation.report.compare import StepComparison, comparable, compare_folders
from grpo_train.evaluation.results.stored import read_summary
from grpo_train.run_dir import RunDir, list_baselines, list_evaluations
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import number_in
from grpo_train.run_dir.safe_json import leave_out

NUMBERS = ("accuracy", "ci_low", "ci_high", "n", "format_rate", "truncated_rate", "mean_length", "flexible_accuracy")


@dataclass(frozen=True)
class EvaluatedStep:
    """A row of an evaluation's table."""

    name: str
    step: int
    status: str
    """``ok``, or why there is no result."""
    numbers: Mapping[str, float]
    """Those of :data:`NUMBERS` that the table has."""

    @property
    def is_complete(self) -> bool:
        return self.status == "ok" and {"accuracy", "ci_low", "ci_high"} <= self.numbers.keys()


@dataclass(frozen=True)
class PairedSteps:
    """One evaluated step against another."""

    dataset: str
    name: str
    """What is compared, e.g. ``step_20`` or ``B step_20``."""
    reference: str
    result: StepComparison | None
    problem: str = ""
    """Why there is no result."""


@dataclass
class Evaluation:
    """All evaluated steps of a run on a dataset, or the result of a model without a run."""

    dataset: str
    folder: Path
    settings: str
    steps: list[EvaluatedStep] = field(default_factory=list)
    model: str = ""
    """Of a model without a run: ``OWNER/NAME@COMMIT`` or its directory."""


def evaluations_of(run: RunDir) -> list[Evaluation]:
    """The evaluations of a run."""
    found = []
    for entry in list_evaluations(run.root, run.name):
        rows = entry["metrics"]
        settings = {key: value for row in rows for key, value in row.items() if row["status"] == "ok"}
        parts = [("split", "split"), ("temperature", "temperature"), ("num_samples", "samples per problem")]
        said = ", ".join(f"{label} {settings[key]}" for key, label in parts if settings.get(key))
        dataset = str(entry["status"].get("dataset") or entry["name"])
        steps = [
            EvaluatedStep(
                row["name"],
                int(row["step"]),
                _status(row),
                {k: v for k in NUMBERS if (v := _float(row.get(k))) is not None},
            )
            for row in rows
        ]
        found.append(Evaluation(dataset, run.root / "eval_runs" / entry["name"], said, steps))
    return found


def baselines_of(
    root: Path, runs: Sequence[tuple[str, Sequence[Evaluation]]]
) -> tuple[list[Evaluation], list[PairedSteps]]:
    """Models evaluated without a run under the settings of the runs' evaluations, and the last step of each run against
    them. Others are left out: their figures cannot be compared.

    ``runs``: a letter and the evaluations of each.
    """
    found: list[Evaluation] = []
    pairs: list[PairedSteps] = []
    for baseline in list_baselines(root):
        name = str(baseline["run"])
        for reference in evaluations_of(RunDir(root / "training_runs" / name)):
            against = [
                _pair(
                    mine.dataset,
                    (mine, last.name, f"{letter} {last.name}".strip()),
                    (reference, TARGET, name),
                )
                for letter, evaluations in runs
                for mine in evaluations
                for last in [step for step in mine.steps if step.is_complete][-1:]
                if mine.dataset == reference.dataset and _are_comparable(mine, last.name, reference)
            ]
            if against:
                steps = [replace(step, name=name) for step in reference.steps]
                found.append(replace(reference, steps=steps, model=str(baseline["model"])))
                pairs += against
    return found, pairs


def _are_comparable(mine: Evaluation, name: str, baseline: Evaluation) -> bool:
    """Whether a step and a model without a run were evaluated under the same settings."""
    folders = (mine.folder / f"{name}_{mine.dataset}", baseline.folder / f"{TARGET}_{baseline.dataset}")
    try:
        summary, other = map(read_summary, folders)
    except (UserError, OSError) as error:  # damaged results; another account's
        leave_out(baseline.folder, error)
        return False
    return bool(summary and other and comparable(summary, other))


def pairs_within(evaluation: Evaluation) -> list[PairedSteps]:
    """Each complete step against the first one."""
    complete = [step for step in evaluation.steps if step.is_complete]
    if not complete:
        return []
    first = complete[0]
    return [
        _pair(evaluation.dataset, (evaluation, step.name, step.name), (evaluation, first.name, first.name))
        for step in complete[1:]
    ]


def pairs_between(runs: Sequence[tuple[str, Sequence[Evaluation]]]) -> list[PairedSteps]:
    """Each run's steps against the same steps of the first run; where none is the same, the last of each.

    ``runs``: a letter and the evaluations of each.
    """
    pairs: list[PairedSteps] = []
    (letter, reference), *others = runs
    for mine in reference:
        names = [step.name for step in mine.steps if step.is_complete]
        for other_letter, evaluations in others:
            for other in evaluations:
                if other.dataset != mine.dataset or not names:
                    continue
                theirs = [step.name for step in other.steps if step.is_complete]
                shared = [(name, name) for name in names if name in theirs]
                for name, their_name in shared or [(names[-1], last) for last in theirs[-1:]]:
                    pairs.append(
                        _pair(
                            mine.dataset,
                            (other, their_name, f"{other_letter} {their_name}"),
                            (mine, name, f"{letter} {name}"),
                        )
                    )
    return pairs


def _pair(dataset: str, one: tuple[Evaluation, str, str], other: tuple[Evaluation, str, str]) -> PairedSteps:
    (evaluation, name, label), (reference, reference_name, reference_label) = one, other
    try:
        result = compare_folders(
            evaluation.folder / f"{name}_{dataset}", reference.folder / f"{reference_name}_{dataset}",
            name, reference_name, dataset,
        )  # fmt: skip
        return PairedSteps(dataset, label, reference_label, result)
    except (UserError, OSError) as error:
        return PairedSteps(dataset, label, reference_label, None, str(error))


def _status(row: Mapping[str, str]) -> str:
    done, total = row.get("done"), row.get("total")
    progress = f" ({done} of {total} samples)" if row["status"] == "partial" and total else ""
    reason = f": {row['error']}" if row.get("error") else ""
    return f"{row['status']}{progress}{reason}"[:500]


def _float(text: str | None) -> float | None:
    value = number_in(text)
    return value if value is not None and abs(value) < 1e300 else None
