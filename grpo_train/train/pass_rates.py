"""``task.pass_rate``: which training problems a run uses, by the share of correct samples in an evaluation.

``pass_rates.json`` of the run has the measured rates of every task, by a hash of question and gold answer: a changed
problem is a problem that was not measured. A resume reads this copy, wherever it runs. Torch-free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.config.schema import Config
from grpo_train.policy.locate import BACKBONES, PolicyError, recorded_base, resolve_backbone
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import atomic_write, read_json, read_jsonl, to_json
from grpo_train.tasks import Problem, TaskError

FILE = "pass_rates.json"
Rates = dict[str, float]
"""Share of correct samples by :func:`content_key`."""


def content_key(question: str, answer: str) -> str:
    """Identity of a problem, whatever its index and its template."""
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()[:24]


class PassRateFilter:
    """Whether a problem's measured rate is in the range; counts what it leaves out."""

    def __init__(self, settings: schema.PassRate, rates: Rates) -> None:
        self._settings, self._rates = settings, rates
        self.counts = {"kept": 0, "outside": 0, "not_measured": 0}

    def __call__(self, problem: Problem) -> bool:
        rate = self._rates.get(content_key(problem.question, problem.answer))
        low, high = self._settings.range
        kind = "not_measured" if rate is None else "kept" if low <= rate <= high else "outside"
        self.counts[kind] += 1
        return kind == "kept"

    def note(self, label: str) -> str:
        """What is left out, for a person."""
        low, high = self._settings.range
        return (
            f"{label}: task.pass_rate [{low:g}, {high:g}] keeps {self.counts['kept']:,} training problems; left out: "
            f"{self.counts['outside']:,} outside the range, {self.counts['not_measured']:,} that "
            f"{self._settings.source} did not measure"
        )


def load_filters(run: RunDir, config: Config) -> dict[str, PassRateFilter]:
    """The filters of a run's tasks by label, from the run's copy of the rates; made if there is none. Raises
    TaskError."""
    parts = {part.part_label: part.pass_rate for part in config.task.parts or [config.task] if part.pass_rate}
    if not parts:
        return {}
    copy = run.path / FILE
    stored: dict[str, Any] = read_json(copy) or {}
    for label, settings in parts.items():
        if stored.get(label, {}).get("source") != settings.source:
            stored[label] = {"source": settings.source, "rates": read_rates(run.root / str(settings.source))}
            atomic_write(copy, to_json(stored) + "\n")
    return {label: PassRateFilter(settings, stored[label]["rates"]) for label, settings in parts.items()}


def resolved(task: schema.TaskConfig, config: Config, root: Path) -> dict[str, Any]:
    """``pass_rate`` with the step's directory as its source, relative to the root where it is inside. Raises
    TaskError."""
    if task.pass_rate is None:
        return {}
    source = task.pass_rate.source
    folder = _step_of(root / source, source) if source else _own_measurement(task, config, root)
    read_rates(folder)
    inside = folder.resolve().is_relative_to(root.resolve())
    shown = str(folder.resolve().relative_to(root.resolve()) if inside else folder.resolve())
    return {"pass_rate": {"range": task.pass_rate.range, "source": shown}}


def read_rates(folder: Path) -> Rates:
    """The rates of a step's directory of an evaluation on the train split. Raises TaskError."""
    summary = read_json(folder / "summary.json")
    if not _measures(summary):
        raise TaskError(
            f"task.pass_rate: {folder} is not a complete evaluation on the train split with several samples per problem"
        )
    correct: dict[str, list[bool]] = {}
    for _, row in read_jsonl(folder / "completions.jsonl"):
        if isinstance(row.get("question"), str) and isinstance(row.get("gold"), str):
            key = content_key(row["question"], row["gold"])
            correct.setdefault(key, []).append(row.get("correct") is True)
    return {key: sum(found) / len(found) for key, found in correct.items()}


def _measures(summary: Mapping[str, Any] | None) -> bool:
    metrics = (summary or {}).get("metrics")
    if not isinstance(metrics, dict) or metrics.get("split") != "train":
        return False
    return isinstance(metrics.get("num_samples"), int) and metrics["num_samples"] > 1


def _step_of(folder: Path, source: str) -> Path:
    """The step's directory that a source names: itself, or the only one in it."""
    if (folder / "summary.json").exists():
        return folder
    found = sorted(file.parent for file in folder.glob("*/summary.json") if _measures(read_json(file)))
    if len(found) == 1:
        return found[0]
    names = f"has several, {', '.join(step.name for step in found)}: name one" if found else "has none"
    raise TaskError(f"task.pass_rate.source: '{source}' must be an evaluation on the train split; {folder} {names}")


def _own_measurement(task: schema.TaskConfig, config: Config, root: Path) -> Path:
    """The only evaluation of the backbone on the task's train split."""
    backbone = BACKBONES.get(config.model.backbone, config.model.backbone)
    try:
        models = {backbone.partition("@")[0], recorded_base(resolve_backbone(config.model.backbone, root), root)}
    except PolicyError:
        models = {backbone.partition("@")[0]}
    found = []
    for file in sorted((root / "eval_runs").glob("*/*/summary.json")):
        status = read_json(file.parent.parent / "status.json") or {}
        if str(status.get("model") or "").partition("@")[0] not in models:
            continue
        summary = read_json(file) or {}
        if _measures(summary) and (summary.get("task") or {}).get("name") == task.name:
            found.append(file.parent)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(step.relative_to(root)) for step in found)
        raise TaskError(f"task.pass_rate: several measurements, {names}; name one as {{range: […], source: …}}")
    raise TaskError(
        f"task.pass_rate: no measurement of {config.model.backbone} on {task.name}; make one with grpo-train eval "
        f"--model {config.model.backbone} --cfg YOUR_CONFIG --dataset {task.part_label} --split train --num-samples 8 "
        "--temperature 1, or name one as {range: [0.1, 0.9], source: eval_runs/NAME}"
    )
