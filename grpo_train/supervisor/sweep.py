"""Sweeps: several configs trained one after the other and compared. Torch-free.

``ROOT/sweeps/NAME/`` holds ``sweep.json`` (the run of each config) and ``comparison.csv``. A sweep of the same name is
resumed: finished runs stay, a stopped run is resumed. It must have the same configs with the same contents; their
paths may differ.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from grpo_train.config import changed_keys, load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, check_name, prepare_root
from grpo_train.run_dir.display import setting
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import atomic_write, to_float
from grpo_train.run_dir.root import SWEEP_VARIABLE
from grpo_train.run_dir.safe_json import read_object
from grpo_train.train.preflight import check_start

TAIL = 0.1
"""Final values are means over this share of the steps, because a single step is noise."""
COLUMNS = (
    "config", "run", "state", "step", "reward", "best_reward", "accuracy", "mean_length", "clipped_ratio",
    "seconds_per_step", "completions_per_second", "peak_gib",
)  # fmt: skip


class SweepError(UserError):
    """A sweep that cannot be run as requested."""

    code = "bad_sweep"


@dataclass(frozen=True)
class SweepResult:
    """Outcome of :func:`run_sweep`."""

    name: str
    rows: list[dict[str, Any]]
    """The comparison, one row per run: see :func:`compare_sweep`."""
    exit_code: int
    """0 if all runs finished, 1 if one crashed, 130 if the sweep was stopped."""


def run_sweep(
    root: Path,
    configs: Sequence[Path],
    overrides: Sequence[str],
    name: str | None,
    show_rows: Callable[[Sequence[dict[str, Any]]], None] = lambda rows: None,
    log: TextIO = sys.stdout,
    check: Callable[[Config], None] = lambda config: None,
) -> SweepResult:
    """Train every config in a separate process tree; ``show_rows`` gets the comparison after each run.

    Every config is checked before the first run starts, also by ``check``. Progress and the output of the runs are
    written to ``log``. Raises UserError.
    """
    if name:
        check_name(name)
    prepare_root(root)
    folder = root / "sweeps" / (name or f"sweep_{datetime.now():%Y-%m-%d_%H-%M-%S}")
    runs = _named(root, configs, folder.name)
    named = {run.name: str(path) for run, path in runs.items()}
    known = (read_object(folder / "sweep.json") or {}).get("runs") or named
    if not isinstance(known, dict) or known.keys() != named.keys():
        names = ", ".join(map(str, known.values() if isinstance(known, dict) else ["unknown"]))
        raise SweepError(f"{folder} is a sweep of other configs ({names}); choose another --name")
    for run, path in runs.items():
        config = load_config(read_config_text(path), list(overrides), source=str(path))
        check(config)
        check_start(config, root, None, partial(print, file=log))
        _check_unchanged(run, config, path)
        _check_not_live(run)
    folder.mkdir(parents=True, exist_ok=True)
    description = {"runs": named, "overrides": list(overrides)}
    atomic_write(folder / "sweep.json", json.dumps(description, indent=1) + "\n")
    stopped, rows = False, compare_sweep(root, named)
    for position, (run, path) in enumerate(runs.items(), 1):
        print(f"grpo-train: sweep {folder.name}, {position} of {len(runs)}: {path}", file=log, flush=True)
        code = _train(run, path, overrides, folder.name, log)
        rows = compare_sweep(root, named)
        atomic_write(folder / "comparison.csv", _csv(rows))
        show_rows(rows)
        if code is None or run.observed_state().state in ("stopped", "killed"):
            stopped = True
            print(f"stopped; resume with  grpo-train sweep --name {folder.name} …", file=log, flush=True)
            break
    print(f"wrote {folder / 'comparison.csv'}", file=log, flush=True)
    finished = all(row["state"] == "finished" for row in rows)
    return SweepResult(folder.name, rows, 130 if stopped else 0 if finished else 1)


def compare_sweep(root: Path, runs: dict[str, str]) -> list[dict[str, Any]]:
    """One row per run, from its logs, with the keys :data:`COLUMNS`; unknown values are missing or None."""
    return [_row(RunDir(root / "training_runs" / run), config) for run, config in runs.items()]


def _named(root: Path, configs: Sequence[Path], sweep: str) -> dict[RunDir, Path]:
    """Run to config. Raises SweepError for duplicate names, RunDirError for malformed ones."""
    runs: dict[RunDir, Path] = {}
    for config in configs:
        name = check_name(f"{sweep}_{re.sub('[^A-Za-z0-9_.-]', '_', config.stem)}")
        run = RunDir(root / "training_runs" / name)
        if run in runs:
            raise SweepError(f"{config} and {runs[run]} have the same name; rename one of them")
        runs[run] = config
    return runs


def _check_unchanged(run: RunDir, config: Config, path: Path) -> None:
    """Raise SweepError if an existing run was launched with a different config."""
    launch = run.launched()
    if not launch.get("config_text"):
        return
    text, overrides = launch["config_text"], list(launch.get("overrides") or [])
    launched = load_config(text, overrides, source=str(run.launch_file))
    changes = [
        f"{key} was {setting(old)}, is now {setting(new)}" for key, (old, new) in changed_keys(launched, config).items()
    ]
    if changes:
        raise SweepError(
            f"{path} has changed since {run.name} was launched ({'; '.join(changes)}); choose another --name"
        )


def _check_not_live(run: RunDir) -> None:
    """Raise SweepError if a run is live, in another sweep of this name or left behind by a killed one."""
    if run.path.exists() and (observed := run.observed_state()).is_live:
        raise SweepError(
            f"{run.name} is {observed.state}, and a sweep trains one run at a time; wait until it ends or stop it "
            f"(grpo-train stop --training-run {run.name}), then rerun this command",
            code="run_is_live",
        )


def _train(run: RunDir, config: Path, overrides: Sequence[str], sweep: str, log: TextIO) -> int | None:
    """Start or resume a run of a sweep and wait for it; its exit code, or None after a Ctrl-C."""
    command = [sys.executable, "-m", "grpo_train.cli"]
    if run.path.exists() and not run.checkpoints() and not run.observed_state().is_live:
        aside = run.path.with_name(f"{run.name}.{datetime.now():%Y-%m-%d_%H-%M-%S}")
        run.path.rename(aside)
        print(f"{run.name} has no checkpoint; restarting it, old files are in {aside}", file=log, flush=True)
    if run.path.exists():
        if run.observed_state().state == "finished":
            print(f"{run.name} is finished", file=log, flush=True)
            return 0
        command += ["resume", "--training-run", run.name]
    else:
        command += ["train", "--cfg", str(config), "--run-name", run.name]
        command += [argument for override in overrides for argument in ("--set", override)]
    environment = {**os.environ, SWEEP_VARIABLE: sweep}
    child = subprocess.Popen([*command, "--root", str(run.root)], stdout=log, env=environment)
    interrupted = False

    def forward(signal_number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        if signal_number != signal.SIGINT or not sys.stdin.isatty():  # a terminal sends Ctrl-C to the child, too
            child.send_signal(signal_number)

    before: dict[int, Callable[..., Any] | int | None] = {
        each: signal.signal(each, forward) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        code = child.wait()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return None if interrupted else code


def _row(run: RunDir, config: str) -> dict[str, Any]:
    row: dict[str, Any] = {"config": Path(config).stem, "run": run.name, "state": "-", "step": 0}
    if not run.path.exists():
        return row
    lines = list(run.read_log("train_log.jsonl"))
    row["state"] = run.observed_state().state
    if not lines:
        return row
    end = lines[-max(1, round(TAIL * len(lines))) :]
    row |= {
        "step": lines[-1]["step"],
        "reward": _mean(end, "reward"),
        "best_reward": max(
            (value for line in lines if (value := to_float(line.get("reward"))) is not None), default=None
        ),
        "accuracy": _mean(end, "accuracy"),
        "mean_length": _mean(end, "completions/mean_length"),
        "clipped_ratio": _mean(end, "completions/clipped_ratio"),
        "seconds_per_step": _mean(lines, "time/step"),
        "peak_gib": max((to_float(line.get("memory/peak_gib")) or 0.0 for line in lines), default=None),
    }
    config_here = load_config(read_config_text(run.config_file), source=str(run.config_file))
    completions = config_here.rollout.buffer_size * config_here.rollout.num_generations / config_here.steps_per_buffer
    if row["seconds_per_step"]:
        row["completions_per_second"] = completions / row["seconds_per_step"]
    return row


def _mean(lines: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [value for line in lines if (value := to_float(line.get(key))) is not None and math.isfinite(value)]
    return sum(values) / len(values) if values else None


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
