"""Time to start the engine, to its first step, and per step: ``python tests/bench/startup.py``.

Prints one line per measurement, all from one run on this machine; commands are medians of three.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir.files import parse_time, read_jsonl
from grpo_train.tiny.model import WarmStart, make_tiny_model
from tests.support.engine import GRPO_TRAIN, environment, write_config

MODULES = (
    "grpo_train.run_dir",
    "grpo_train.config",
    "grpo_train.cli",
    "grpo_train.supervisor.supervisor",
    "grpo_train.train.loop",
)


def seconds(command: list[str], root: Path | None = None) -> float:
    """Wall seconds of a command, median of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(command, env=environment(root), check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Print the measurements."""
    empty = seconds([sys.executable, "-c", ""])
    print(f"{'empty interpreter':<34} {empty:6.2f} s")
    for module in MODULES:
        print(f"{'import ' + module:<34} {seconds([sys.executable, '-c', f'import {module}']) - empty:6.2f} s more")
    print(f"{'grpo-train --help':<34} {seconds([*GRPO_TRAIN, '--help']):6.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_tiny_model(root / "models" / "tiny", warm_start=WarmStart(steps=12, batch_size=8))
        cfg = write_config(root)
        for nproc in (1, 2):
            name, began = f"bench{nproc}", time.time()
            command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", name, "--nproc", str(nproc)]
            subprocess.run(command, env=environment(root), check=True, capture_output=True)
            rows = [row for _, row in read_jsonl(root / "training_runs" / name / "logs" / "train_log.jsonl")]
            label = f"{nproc} process{'es' if nproc > 1 else ''}"
            print(f"{label + ': command to first step':<34} {parse_time(rows[0]['time']) - began:6.2f} s")
            step = statistics.median(row["time/step"] for row in rows[1:])
            save = statistics.median(row["time/save"] for row in rows[1:])
            print(f"{label + ': step and its save':<34} {step:6.2f} s, of which {save:.2f} s saving")


if __name__ == "__main__":
    main()
