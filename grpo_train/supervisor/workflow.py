"""The stages of a run and how far it is: ``workflow.json``, whose cursor moves only after a stage is done. Torch-free.

A kill at any write repeats at most the stage under way. The cursor is kept as the names of the stages that are done, so
that a workflow can be edited between two starts: it continues at the first stage that has not been done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import atomic_write, read_json, to_float
from grpo_train.run_dir.workflow_file import NAME, is_workflow
from grpo_train.supervisor.stages import Stage, all_stages, stages_left

FORMAT = 1


class RunWorkflow:
    """The stages of one run, and the cursor among them."""

    def __init__(self, run: RunDir, config: Config) -> None:
        self._file = workflow_file(run)
        self.stages = all_stages(config)
        self._total = config.run.total_steps
        recorded = read_workflow(run)
        self.cursor = position(self.stages, recorded, run.newest_step(), stages_left(run.newest_step(), config))
        self.rules_from = int(to_float(recorded.get("rules_from")) or 0)
        """Step after which ``workflow.stop_when`` looks at the log: a resumed run does not stop for the same reason."""
        self.failed = {name: why for name, why in _failed(recorded).items() if name in self._done_names()}
        """Stages that were passed over because they failed, and why; "" where an older version did not note it."""

    @property
    def current(self) -> Stage | None:
        """The stage to run next; None at the end."""
        return self.stages[self.cursor] if self.cursor < len(self.stages) else None

    @property
    def trains_again(self) -> bool:
        """Whether a later stage trains."""
        return any(stage.kind == "train" for stage in self.stages[self.cursor + 1 :])

    @property
    def failures(self) -> str:
        """What failed and why; "" if nothing did."""
        return "; ".join(f"{name}: {why}" if why else name for name, why in self.failed.items())

    def advance(self, *, failure: str | None = None) -> None:
        """Move past the current stage, which has failed with a reason or is done. Raises OSError."""
        if failure is not None:
            self.failed[self.stages[self.cursor].name] = failure
        self.cursor += 1
        self.write()

    def write(self) -> None:
        """Write ``workflow.json``. Raises OSError."""
        content = {
            "format": FORMAT,
            "total_steps": self._total,
            "stages": [stage.name for stage in self.stages],
            "done": self._done_names(),
            "failed": self.failed,
            "rules_from": self.rules_from,
        }
        atomic_write(self._file, json.dumps(content, indent=1) + "\n")

    def _done_names(self) -> list[str]:
        return [stage.name for stage in self.stages[: self.cursor]]


def _failed(recorded: dict[str, Any]) -> dict[str, str]:
    """``failed`` of a ``workflow.json``: name to reason, or the names alone."""
    failed = recorded.get("failed") or {}
    pairs = failed.items() if isinstance(failed, dict) else ((name, "") for name in failed)
    return {str(name): str(why) for name, why in pairs}


def workflow_file(run: RunDir) -> Path:
    """Where a run keeps its cursor."""
    return run.path / NAME


def read_workflow(run: RunDir) -> dict[str, Any]:
    """Content of a run's ``workflow.json``; {} without a valid one."""
    return read_json(workflow_file(run)) or {}


def position(stages: Sequence[Stage], recorded: dict[str, Any], trained: int, unrecorded: Sequence[Stage]) -> int:
    """Index of the first stage that is to be run.

    Args:
        recorded: content of ``workflow.json``; {} for a run of an older version, or a new one.
        trained: step of the newest checkpoint: training after it is done again.
        unrecorded: the stages that are left where nothing is recorded.
    """
    names = recorded.get("done")
    if not isinstance(names, list):
        return len(stages) - len(unrecorded)
    done = iter(names)
    cursor = 0
    for stage in stages:
        if stage.name not in done:  # consumes what is not a stage any more
            break
        cursor += 1
    redone = (i for i, stage in enumerate(stages[:cursor]) if stage.kind == "train" and stage.until > trained)
    return next(redone, cursor)


def remaining(run: RunDir, config: Config, from_step: int) -> list[Stage]:
    """The stages that a resume from a checkpoint would run."""
    stages = all_stages(config)
    left = stages[position(stages, read_workflow(run), from_step, stages_left(from_step, config)) :]
    return [stage for stage in left if stage.kind != "train" or stage.until > from_step]


@dataclass(frozen=True)
class StageRow:
    """A stage in the comparison of a workflow with its last start."""

    change: str
    """``kept``, ``removed`` or ``added``."""
    stage: str
    done: bool
    """Whether it was done before."""


def compare_stages(run: RunDir, config: Config) -> list[StageRow]:
    """The recorded stages and those of a config, in order; [] for a run that has recorded none.

    Both reach the recorded total: more steps (``--additional-steps``) are not an edit.
    """
    recorded = read_workflow(run)
    if not isinstance(recorded.get("stages"), list):
        return []
    before = [str(name) for name in recorded["stages"]]
    total = int(to_float(recorded.get("total_steps")) or config.run.total_steps)
    after = [stage.name for stage in all_stages(config, total)]
    done = len(recorded["done"]) if isinstance(recorded.get("done"), list) else 0
    rows = []
    for operation, start, end, new_start, new_end in SequenceMatcher(None, before, after, False).get_opcodes():
        change = "kept" if operation == "equal" else "removed"
        rows += [StageRow(change, before[i], i < done) for i in range(start, end)]
        rows += [StageRow("added", after[i], False) for i in range(new_start, new_end) if operation != "equal"]
    return rows


def edits(run: RunDir, config: Config) -> list[StageRow]:
    """The comparison of an edited workflow, which its user has to confirm; [] if nothing was edited."""
    rows = compare_stages(run, config)
    before = [row.stage for row in rows if row.change != "added"]
    is_edited = any(row.change != "kept" for row in rows)
    return rows if is_edited and (config.workflow.stages or is_workflow(before)) else []


def edited(run: RunDir, config: Config) -> list[str]:
    """The edits as lines of a diff; [] without any."""
    return diff_lines(edits(run, config))


def diff_lines(rows: Sequence[StageRow]) -> list[str]:
    """The stages of a comparison that differ: ``- before``, ``+ now``."""
    signs = {"removed": "-", "added": "+"}
    return [f"{signs[row.change]} {row.stage}" for row in rows if row.change in signs]


def confirmation_of(rows: Sequence[StageRow]) -> str:
    """Digest of edits, which names them in a confirmation; "" without any."""
    text = json.dumps([[row.change, row.stage] for row in rows])
    return hashlib.sha256(text.encode()).hexdigest()[:16] if rows else ""
