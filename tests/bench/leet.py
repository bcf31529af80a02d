"""``wandb leet``, the terminal app of Weights & Biases, on a run like the one of :mod:`tests.bench.face`:
``LEET=FOLDER/bin python tests/bench/leet.py``, where FOLDER is a virtual environment with wandb.

It is opened on an offline run of 100,000 steps, and then followed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.index import METRICS, cpu, loads, row, write_run
from tests.bench.terminal import Terminal

STEPS = 100_000
FOLLOWED_S = 20.0
QUIET_S = 3.0
"""It has read all once it used less than a tenth of a core for this long."""
LONGEST_S = 300.0
WRITE = """
import json, os, random, sys
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
import wandb
metrics, steps = json.loads(sys.argv[1]), int(sys.argv[2])
settings = wandb.Settings(x_disable_stats=True, console="off")
run, chance = wandb.init(project="bench", dir=sys.argv[3], settings=settings), random.Random("long")
def log():
    run.log({metric: chance.random() * 10 for metric in metrics})
for _ in range(steps):
    log()
print("written", flush=True)
for _ in sys.stdin:
    log()
"""


def processes(pid: int) -> list[int]:
    """A process and its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def used(pid: int) -> float:
    """Seconds of processor time of a process and its descendants."""
    return sum(map(cpu, processes(pid)))


def peak(pid: int) -> int:
    """Their peak memory in MiB."""
    status = [Path(f"/proc/{one}/status").read_text().splitlines() for one in processes(pid)]
    return sum(int(line.split()[1]) for lines in status for line in lines if line.startswith("VmHWM")) // 1024


def opened(terminal: Terminal) -> float:
    """Seconds of processor time until the whole run is read."""
    before, quiet_since = used(terminal.pid), time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S and time.perf_counter() - terminal.began < LONGEST_S:
        terminal.rest(1.0)
        now = used(terminal.pid)
        if now - before > 0.1:
            quiet_since = time.monotonic()
        before = now
    return before


def followed(terminal: Terminal, writer: subprocess.Popen[str], every: float) -> float:
    """Share of a core in percent, while rows arrive at a given interval in seconds."""
    assert writer.stdin is not None
    began, before = time.perf_counter(), used(terminal.pid)
    while time.perf_counter() - began < FOLLOWED_S:
        writer.stdin.write("\n")
        writer.stdin.flush()
        terminal.rest(every)
    return 100 * (used(terminal.pid) - before) / (time.perf_counter() - began)


def main() -> None:
    """Print its figures, or how to get it."""
    programs = Path(os.environ.get("LEET", "/nowhere"))
    if not (programs / "wandb").exists():
        print("wandb leet is left out: install wandb into a virtual environment, and set LEET to its bin folder")
        return
    with tempfile.TemporaryDirectory() as folder:
        _, loaded = loads(write_run(Path(folder), "long", STEPS, METRICS))
        command = [str(programs / "python"), "-c", WRITE, json.dumps(METRICS), str(STEPS), folder]
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        while "written" not in writer.stdout.readline():
            assert writer.poll() is None, "wandb did not write the run"
        select.select([], [], [], 2)
        (log,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
        terminal = Terminal([str(programs / "wandb"), "leet", "run", str(log)], folder)
        try:
            row("wandb leet: CPU to open / CPU of json.loads", f"{opened(terminal) / loaded:.1f}")
            for every in (1.0, 0.25):
                share = followed(terminal, writer, every)
                row(f"wandb leet: followed live, {1 / every:.0f} row(s) a second: CPU", f"{share:.1f} %")
            row("wandb leet: peak memory", f"{peak(terminal.pid)} MiB")
        finally:
            terminal.close()
            writer.kill()


if __name__ == "__main__":
    main()
