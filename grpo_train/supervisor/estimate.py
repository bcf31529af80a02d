"""How long the stages of a run may take, from earlier runs like it under the same root. Torch-free."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from grpo_train.config import ConfigError, load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, list_runs
from grpo_train.run_dir.files import read_jsonl, to_float
from grpo_train.run_dir.safe_json import leave_out
from grpo_train.supervisor.stages import Stage

RUNS = 3
"""Number of newest runs like this one that are read."""
STEPS = 200
"""Last steps of each run."""
SAME = ("model", "rollout", "train", "task")
"""Sections that decide how long a step takes, with the number of processes and updates per buffer."""


class Estimates:
    """Medians of the steps and stages of the newest runs of the same shape."""

    def __init__(self, root: Path, config: Config) -> None:
        self.sources: list[str] = []
        """Names of the runs that the estimates come from."""
        self._steps: list[float] = []
        self._stages: dict[str, list[float]] = defaultdict(list)
        for run in list_runs(root):
            if len(self.sources) < RUNS and _is_like(run, config):
                self._read(run)

    def seconds(self, stage: Stage, start: int) -> float | None:
        """Duration of a stage of a run that has trained to step ``start``; None where nothing is known."""
        if stage.kind == "train":
            return statistics.median(self._steps) * max(0, stage.until - start) if self._steps else None
        known = self._stages.get(_shape(stage.name)) or (None if stage.kind == "eval" else self._stages.get(stage.kind))
        return statistics.median(known) if known else None

    def _read(self, run: RunDir) -> None:
        rows = list(run.read_log("train_log.jsonl"))[-STEPS:]
        steps = [seconds for row in rows if (seconds := to_float(row.get("time/step"))) is not None]
        stages = [row for _, row in read_jsonl(run.events_file) if row.get("event") == "stage_done"]
        if steps or stages:
            self.sources.append(run.name)
        self._steps += steps
        for row in stages:
            if (seconds := to_float(row.get("seconds"))) is not None:
                self._stages[_shape(str(row.get("stage")))].append(seconds)
                self._stages[str(row.get("kind"))].append(seconds)


def _shape(name: str) -> str:
    """The name of a stage without its step."""
    return " ".join(word for word in name.split() if not word.isdigit())


def _is_like(run: RunDir, config: Config) -> bool:
    if not run.config_file.exists():  # it never started
        return False
    try:
        other = load_config(read_config_text(run.config_file), source=str(run.config_file))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        leave_out(run.config_file, error)
        return False
    return all(map(_same, _shape_of(other), _shape_of(config)))


def _same(known: Any, asked: Any) -> bool:
    """Whether two values are equal, or the one asked for is resolved at launch."""
    if isinstance(known, dict) and isinstance(asked, dict):
        return all(_same(known.get(key), value) for key, value in asked.items())
    return bool(known == asked or asked == "auto")


def _shape_of(config: Config) -> list[Any]:
    document = config.model_dump(mode="json")
    for task in document["task"].get("parts", [document["task"]]):
        del task["path"]  # absolute in a run's config
    return [*(document[section] for section in SAME), config.run.nproc, config.steps_per_buffer]
