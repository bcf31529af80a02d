"""The verdict on runs that were really trained: ``python tests/bench/planted_runs.py [ROOT] [RUNS]``.

The tiny model learns addition; a resume at step 40 plants a fault (or the first step has it). RUNS (default 4) of each
of six faults and six healthy runs are trained, evaluated at each checkpoint, and judged after every step from what was
known then. What was trained under ROOT already is not trained again. Printed for each fault, with what
:mod:`tests.bench.verdicts` counts:

- false: runs with a verdict at any step that is neither the fault's nor true of the run before
- missed: runs whose fault was not named within max(10 steps, 10 %), of those that held-out accuracy shows within three
  evaluations
- onset: runs whose fault was found with its first step within 3
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.evaluations import list_evaluations
from grpo_train.run_dir.verdict import RunVerdict
from grpo_train.run_dir.verdict_rules import METRICS, Evidence, held_out, judge

REPOSITORY = Path(__file__).resolve().parents[2]
AT, STEPS, SAVES = 40, 90, 10
EARLIEST = 5
HEALTHY = 6
REWARD = "def brief(attempt, verdict):\n    return 2.0 / (1 + attempt.length)\n"
"""A reward that pays for nothing but short answers."""


@dataclass(frozen=True)
class Fault:
    """What is planted, and what may be said of it."""

    words: frozenset[str]
    changes: tuple[str, ...] = ()
    """Keys of the config from step AT on; from the first step on if ``is_whole``."""
    is_whole: bool = False
    steps: int = STEPS
    by_held_out: bool = False

    @property
    def deadline(self) -> int:
        """The last step at which nothing need be said."""
        if self.is_whole:
            return self.steps - 1
        return AT + (3 * SAVES if self.by_held_out else max(10, self.steps // 10))


def faults(root: Path) -> dict[str, Fault]:
    broken = frozenset(("collapsed", "diverging", "no signal"))
    return {
        "learning rate": Fault(broken, ("optimizer.learning_rate=0.03", "optimizer.max_grad_norm=1000")),
        "short completions": Fault(frozenset(("collapsed", "no signal")), ("rollout.max_completion_length=8",)),
        "temperature": Fault(frozenset(("collapsed", "no signal", "diverging")), ("rollout.temperature=4",)),
        "equal samples": Fault(frozenset(("no signal",)), ("rollout.temperature=0.01",)),
        "wrong reward": Fault(
            frozenset(("suspicious", "collapsed", "no signal")),
            (f"task.rewards=[{root}/brief.py:brief]",),
            by_held_out=True,
        ),
        "learns nothing": Fault(frozenset(("flat",)), ("optimizer.learning_rate=1e-12",), is_whole=True, steps=140),
        "healthy": Fault(frozenset(), steps=STEPS),
    }


def command(root: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grpo_train.cli", *words],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "LOCALFS_ROOT": str(root)},
    )
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(words)}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def options(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def train(root: Path, name: str, fault: Fault, seed: int) -> None:
    """One run, trained and evaluated."""
    run = RunDir(root / "training_runs" / name)
    if run.config_file.exists() and list_evaluations(root, name):
        return
    first = [f"run.seed={seed}", f"run.total_steps={fault.steps}", f"run.save_every={SAVES}", "rollout.buffer_size=16"]
    begun = fault.changes if fault.is_whole else ()
    planted = bool(fault.changes) and not fault.is_whole
    ends = [f"run.total_steps={AT}"] if planted else []
    cfg = str(REPOSITORY / "config" / "demo.yaml")
    command(root, "train", "--cfg", cfg, "--run-name", name, *options(*first, *begun, *ends))
    if planted:
        command(root, "resume", "--training-run", name, *options(f"run.total_steps={fault.steps}", *fault.changes))
    command(root, "eval", "--training-run", name, "--num-problems", "200")


def verdicts(run: RunDir) -> list[RunVerdict | None]:
    """The verdict after each step from EARLIEST on."""
    rows = list(run.read_log("train_log.jsonl"))
    nan = float("nan")
    columns: dict[str, list[float]] = {
        name: [nan if row.get(name) is None else float(row[name]) for row in rows] for name in ("step", *METRICS)
    }
    results = held_out(list_evaluations(run.root, run.name))
    events = [event for _, event in run.events()]

    def event_step(event: dict[str, Any]) -> int:
        return int(event["step"]) if isinstance(event.get("step"), int) else 0

    return [
        judge(
            Evidence(
                columns["step"][:step],
                lambda name, step=step: columns[name][:step],  # type: ignore[misc]
                [one for one in results if one.step <= step],
                [event for event in events if event_step(event) < step],
                step == len(rows),
                len(rows),
            )
        )
        for step in range(EARLIEST, len(rows) + 1)
    ]


def main(root: Path, runs: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "brief.py").write_text(REWARD)
    if not (root / "models" / "tiny").exists():
        command(root, "tiny-model", "--out", str(root / "models" / "tiny"))
    print(f"{'fault':18}{'runs':>5}{'false':>6}{'missed':>7}{'onset':>7}  last words, wrong words", flush=True)
    for kind, fault in faults(root).items():
        began, false, missed, near, found = time.monotonic(), 0, 0, 0, 0
        said: Counter[str] = Counter()
        wrong: Counter[str] = Counter()
        count = HEALTHY if kind == "healthy" else runs
        for seed in range(count):
            name = f"{kind.replace(' ', '_')}_{seed}"
            train(root, name, fault, seed)
            judged = verdicts(RunDir(root / "training_runs" / name))
            onset = 1 if fault.is_whole else AT + 1
            is_false = False
            for step, verdict in enumerate(judged, EARLIEST):
                word = verdict.word if verdict else ""
                right = {""} if step < len(judged) + EARLIEST - 1 or fault.words else {"", "done"}
                if not fault.is_whole and (not fault.words or step <= fault.deadline):
                    right |= {"improving"}
                right |= fault.words if step >= onset - 3 else set()
                if word not in right:
                    is_false = True
                    wrong[f"{word} @{step}"] += 1
            named = [
                at for at, one in enumerate(judged, EARLIEST) if one and one.word in fault.words and at >= onset - 3
            ]
            false += is_false
            if fault.words:
                missed += not named or named[0] > fault.deadline + 1
                last = judged[named[-1] - EARLIEST] if named else None
                found += last is not None
                near += last is not None and abs(last.since - onset) <= 3
            said[judged[-1].word if judged[-1] else "–"] += 1
        words = ", ".join(f"{word} {times}" for word, times in said.items())
        bad = ", ".join(f"{word} {times}" for word, times in list(wrong.items())[:6])
        onsets = f"{near}/{found}" if fault.words else ""
        took = f"({time.monotonic() - began:.0f} s)"
        print(f"{kind:18}{count:>5}{false:>6}{missed:>7}{onsets:>7}  {words}; {bad} {took}", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(Path(given[0]) if given else Path(tempfile.mkdtemp(prefix="planted")), int(given[1]) if len(given) > 1 else 4)
