"""How a run and its evaluations used the GPUs, from their samples: use, memory, energy, and idle time per stage."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from grpo_train.history.spans import Span, joined, run_spans
from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.files import read_jsonl, time_of, to_float

GPU_LOG = "gpu.jsonl"
IDLE = 5.0
"""Use in percent below which a GPU is idle."""
GAP = 3.0
"""A gap between samples of more than this many intervals is not counted: nothing was measured in it."""
PHASES = ("save", "rollout", "reward", "score", "train")
"""Of a step, in their order; its row in the log is written at the end."""
EVALUATE, START, OTHER = "evaluate", "start", "other"


@dataclass
class Usage:
    """What GPUs did over a time; hours are GPU hours."""

    hours: float = 0.0
    idle_hours: float = 0.0
    energy_wh: float = 0.0
    """Of the samples that have a power."""
    use_percent: float | None = None
    """Mean, weighted by time."""
    memory_share: float | None = None
    """Mean of used to all memory …"""
    memory_peak_share: float | None = None
    """… and its maximum."""
    _use: tuple[float, float] = field(default=(0.0, 0.0), repr=False)
    _memory: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    @property
    def idle_share(self) -> float | None:
        return self.idle_hours / self.hours if self.hours else None

    def add(self, sample: Mapping[str, Any], seconds: float) -> None:
        """Count a sample that stands for a number of seconds."""
        hours = seconds / 3600
        self.hours += hours
        if (use := to_float(sample.get("utilization_percent"))) is not None:
            self._use = (self._use[0] + use * hours, self._use[1] + hours)
            self.use_percent = self._use[0] / self._use[1] if self._use[1] else None
            self.idle_hours += hours if use < IDLE else 0.0
        if (power := to_float(sample.get("power_w"))) is not None:
            self.energy_wh += power * hours
        used, total = to_float(sample.get("memory_used_mib")), to_float(sample.get("memory_total_mib"))
        if used is not None and total:
            self._memory = (self._memory[0] + used / total * hours, self._memory[1] + hours)
            self.memory_share = self._memory[0] / self._memory[1] if self._memory[1] else None
            self.memory_peak_share = max(self.memory_peak_share or 0.0, used / total)

    def facts(self) -> dict[str, float | None]:
        """As JSON."""
        return {
            "gpu_hours": self.hours, "use_percent": self.use_percent, "idle_share": self.idle_share,
            "memory_share": self.memory_share, "memory_peak_share": self.memory_peak_share, "energy_wh": self.energy_wh,
        }  # fmt: skip


@dataclass
class RunUsage:
    """The usage of a run."""

    run: str
    gpus: int
    whole: Usage
    stages: dict[str, Usage]
    """Phase of a step, ``evaluate``, ``start`` (until the first step) or ``other``."""
    evaluations: dict[str, Usage]
    """Evaluations that were started by hand, by their name."""

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "run": self.run,
            "gpus": self.gpus,
            **self.whole.facts(),
            "stages": {name: usage.facts() for name, usage in self.stages.items()},
            "evaluations": {name: usage.facts() for name, usage in self.evaluations.items()},
        }


def usage_of(run: RunDir) -> RunUsage:
    """The usage of a run and of the evaluations started by hand."""
    stage_of = _Stages(run)
    whole, stages, indices = Usage(), dict[str, Usage](), set[Any]()
    for at, seconds, sample in _samples(run.logs / GPU_LOG):
        indices.add(sample.get("index"))
        whole.add(sample, seconds)
        stages.setdefault(stage_of(at), Usage()).add(sample, seconds)
    evaluations = {}
    for entry in list_evaluations(run.root, run.name):
        found = Usage()
        for _, seconds, sample in _samples(run.root / "eval_runs" / entry["name"] / GPU_LOG):
            indices.add(sample.get("index"))
            found.add(sample, seconds)
        if found.hours:
            evaluations[entry["name"]] = found
    order = [*PHASES, EVALUATE, START, OTHER]
    return RunUsage(
        run.name, len(indices), whole, {name: stages[name] for name in order if name in stages}, evaluations
    )


def _samples(file: Path) -> Iterator[tuple[float, float, dict[str, Any]]]:
    """Time, seconds that it stands for, and sample, of each GPU sample of a log."""
    by_gpu: dict[Any, list[tuple[float, dict[str, Any]]]] = {}
    for _, row in read_jsonl(file):
        if "index" in row and (at := time_of(row.get("time"))) is not None:
            by_gpu.setdefault(row["index"], []).append((at, row))
    for rows in by_gpu.values():
        gaps = [after[0] - before[0] for before, after in pairwise(rows)]
        interval = median(gap for gap in gaps if gap > 0) if any(gap > 0 for gap in gaps) else 0.0
        for (at, row), gap in zip(rows, [interval, *gaps], strict=True):  # a sample stands for the time before it
            yield at, gap if 0 <= gap <= GAP * interval else interval, row


class _Stages:
    """What a run did at a time."""

    def __init__(self, run: RunDir) -> None:
        self._phases: list[tuple[float, float, str]] = sorted(_phases(run.read_log("train_log.jsonl")))
        self._begins = [begin for begin, _, _ in self._phases]
        status = run.read_status() or {}
        starts = run_spans((event for _, event in run.events()), status.get("updated_at"), None)
        self._starts: list[Span] = []
        for launched, ended in starts:
            first = next((at for at in self._begins if at >= launched), ended)
            self._starts.append((launched, min(first, ended)))
        self._evaluations = joined(
            (start, end)
            for entry in list_evaluations(run.root, run.name)
            if (start := time_of(entry.get("started_at"))) and (end := time_of(entry.get("updated_at")))
        )

    def __call__(self, at: float) -> str:
        if any(start <= at <= end for start, end in self._evaluations):
            return EVALUATE
        place = bisect_right(self._begins, at) - 1
        if place >= 0 and at <= self._phases[place][1]:
            return self._phases[place][2]
        return START if any(start <= at <= end for start, end in self._starts) else OTHER


def _phases(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, float, str]]:
    """Begin, end and name of each phase of each step."""
    for row in rows:
        end, whole = time_of(row.get("time")), to_float(row.get("time/step"))
        if end is None or whole is None:
            continue
        begin = end - whole
        for name in PHASES:
            seconds = to_float(row.get(f"time/{name}")) or 0.0
            if seconds > 0:
                yield begin, min(begin + seconds, end), name
                begin += seconds
