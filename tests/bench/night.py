"""What a night relies on: ``python tests/bench/night.py``. How soon a hang is noticed, and a query over 1,000 runs.

A training run of the tiny model is stopped with SIGSTOP; the hang is noticed when its state is ``stalled``.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from grpo_train.tiny.model import make_tiny_model
from tests.bench import history
from tests.bench.backup import row
from tests.support.engine import GRPO_TRAIN, run_of, running, steps_logged, wait_for, write_config

TURNS, STALL_S = 3, 10.0


def noticed_after(root: Path, name: str) -> float:
    """Seconds from the stop of the training process until its run is ``stalled``, beyond ``stall_timeout``."""
    cfg = write_config(root, f"{name}.yaml", run__total_steps=5_000, run__save_every=5_000, run__stall_timeout=STALL_S)
    run = run_of(root, name)
    command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", name, "--root", str(root)]
    with running(command, root, run_id_of(run.path), real=True):
        wait_for(lambda: len(steps_logged(run)) >= 2, "two steps", 300)
        for pid in find_by_run_id(run_id_of(run.path)):
            if b"grpo_train.train" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        wait_for(lambda: (run.read_status() or {})["state"] == "stalled", "the state 'stalled'", 120)
        return time.monotonic() - began - STALL_S


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    history.measure(1_000)
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as name:
        root = Path(name)
        make_tiny_model(root / "models" / "tiny")
        each = [noticed_after(root, f"turn-{turn}") for turn in range(TURNS)]
    shown = f"{max(each):.1f} s ({', '.join(f'{one:.1f}' for one in each)})"
    row(f"hang noticed, beyond run.stall_timeout: {STALL_S:g}, at most", shown, "5 s")


if __name__ == "__main__":
    main()
