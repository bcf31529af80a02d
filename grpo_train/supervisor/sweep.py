"""Several configs trained one after the other, and a table that compares them. Torch-free.

``ROOT/sweeps/NAME/`` holds ``sweep.json`` (which config is which run) and ``comparison.csv``. A sweep of the same name
goes on where it ended: runs that are finished stay, one that was stopped is resumed. It is the same sweep as long as
the same configs say the same; where the files lie is no matter.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_train.config import load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, check_name, prepare_root
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import atomic_write, read_json, to_float
from grpo_train.train.preflight import check_start

TAIL = 0.1
"""The end of a run is the mean of its last tenth of steps: a single step is noise."""
COLUMNS = (
    "config", "run", "state", "step", "reward", "best_reward", "accuracy", "mean_length", "clipped_ratio",
    "seconds_per_step", "completions_per_second", "peak_gib",
)  # fmt: skip

__all__ = ["SweepError", "compare", "run_sweep"]


class SweepError(UserError):
    """A sweep that cannot be run as asked; says what and the way out."""

    code = "bad_sweep"


def run_sweep(root: Path, configs: Sequence[Path], overrides: Sequence[str], name: str | None) -> int:
    """Train every config in its own process tree and print the comparison after each.

    Returns 0 when all runs finished, 1 when one crashed, 130 when the sweep was stopped. Every config is checked before
    the first one starts. Raises SweepError, RunDirError, ConfigError, PolicyError, TaskError.
    """
    if name:
        check_name(name)
    prepare_root(root)
    folder = root / "sweeps" / (name or f"sweep_{datetime.now():%Y-%m-%d_%H-%M-%S}")
    runs = _named(configs, folder.name)
    named = {run: str(config) for run, config in runs.items()}
    known = (read_json(folder / "sweep.json") or {}).get("runs") or named
    if known.keys() != named.keys():
        raise SweepError(f"{folder} is a sweep of other configs ({', '.join(known.values())}); give another --name")
    for run, path in runs.items():
        asked = load_config(read_config_text(path), list(overrides), source=str(path))
        check_start(asked, root, None)
        _check_same(RunDir(root / "training_runs" / run), asked, path)
        _check_at_rest(RunDir(root / "training_runs" / run))
    folder.mkdir(parents=True, exist_ok=True)
    what = {"runs": named, "overrides": list(overrides)}
    atomic_write(folder / "sweep.json", json.dumps(what, indent=1) + "\n")
    stopped = False
    for place, (run, config) in enumerate(runs.items(), 1):
        print(f"grpo-train: sweep {folder.name}, {place} of {len(runs)}: {config}", flush=True)
        code = _train(root, run, config, overrides)
        rows = compare(root, named)
        atomic_write(folder / "comparison.csv", _csv(rows))
        print(table(rows), flush=True)
        if code is None or RunDir(root / "training_runs" / run).observed_state().state in ("stopped", "killed"):
            stopped = True
            print(f"stopped; go on with  grpo-train sweep --name {folder.name} …", flush=True)
            break
    print(f"wrote {folder / 'comparison.csv'}", flush=True)
    if stopped:
        return 130
    return 0 if all(row["state"] == "finished" for row in rows) else 1


def compare(root: Path, runs: dict[str, str]) -> list[dict[str, Any]]:
    """A row a run, from its logs: {"config", "run", "state", "step", "reward", …}; None where it is not known."""
    return [_row(RunDir(root / "training_runs" / run), config) for run, config in runs.items()]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison as text, columns aligned."""
    shown = [name for name in COLUMNS if name != "run"]
    cells = [shown, *([_text(row.get(name)) for name in shown] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def _named(configs: Sequence[Path], sweep: str) -> dict[str, Path]:
    """Each config's run. Raises SweepError where two would have one name, RunDirError where one cannot be named so."""
    runs: dict[str, Path] = {}
    for config in configs:
        run = f"{sweep}_{re.sub('[^A-Za-z0-9_.-]', '_', config.stem)}"
        check_name(run)
        if run in runs:
            raise SweepError(f"{config} and {runs[run]} have the same name; rename one")
        runs[run] = config
    return runs


def _check_same(run: RunDir, config: Config, path: Path) -> None:
    """Raise SweepError where a run that is there was launched with another configuration than it would be now."""
    launch = run.read_launch()
    if "config_text" not in launch:
        return
    text, overrides = str(launch["config_text"]), list(launch.get("overrides") or [])
    before, now = _flat(load_config(text, overrides, source=str(run.launch_file))), _flat(config)
    changed = [f"{key} was {before[key]}, is now {now[key]}" for key in now if before[key] != now[key]]
    if changed:
        raise SweepError(
            f"{path} and --set say something else than when {run.name} was launched ({'; '.join(changed)}); "
            "give another --name"
        )


def _check_at_rest(run: RunDir) -> None:
    """Raise SweepError where a run is under way: another sweep of this name is, or was killed and left it behind."""
    if run.path.exists() and (observed := run.observed_state()).is_live:
        raise SweepError(
            f"{run.name} is {observed.state}, and a sweep trains one run at a time: wait for its end, or stop it "
            f"(grpo-train stop --training-run {run.name}), then run this again"
        )


def _flat(config: Config) -> dict[str, Any]:
    """{"section.key": value}."""
    sections = config.model_dump(mode="json")
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


def _train(root: Path, run: str, config: Path, overrides: Sequence[str]) -> int | None:
    """Start or resume a run and wait; its exit code, or None where a Ctrl-C ended it."""
    command = [sys.executable, "-m", "grpo_train.cli"]
    found = RunDir(root / "training_runs" / run)
    if found.path.exists() and not found.checkpoints() and not found.observed_state().is_live:
        aside = found.path.with_name(f"{run}.{datetime.now():%Y-%m-%d_%H-%M-%S}")
        found.path.rename(aside)
        print(f"{run} had saved nothing to go on from: it starts anew, what there was is {aside}", flush=True)
    if found.path.exists():
        if found.observed_state().state == "finished":
            print(f"{run} is finished", flush=True)
            return 0
        command += ["resume", "--training-run", run]
    else:
        command += ["train", "--cfg", str(config), "--run-name", run]
        command += [word for override in overrides for word in ("--set", override)]
    child = subprocess.Popen([*command, "--root", str(root)])
    asked = False

    def pass_on(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        if number != signal.SIGINT or not sys.stdin.isatty():  # a terminal's Ctrl-C reaches the child by itself
            child.send_signal(number)

    before: dict[int, Callable[..., Any] | int | None] = {
        each: signal.signal(each, pass_on) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        code = child.wait()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return None if asked else code


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
    config_here = load_config(run.config_file.read_text(encoding="utf-8"), source=str(run.config_file))
    completions = config_here.rollout.buffer_size * config_here.rollout.num_generations / config_here.steps_per_buffer
    if row["seconds_per_step"]:
        row["completions_per_second"] = completions / row["seconds_per_step"]
    return row


def _mean(lines: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [value for line in lines if (value := to_float(line.get(key))) is not None and math.isfinite(value)]
    return sum(values) / len(values) if values else None


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
