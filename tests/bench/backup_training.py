"""What backups and tracking cost a training run: ``python tests/bench/backup_training.py`` (17 minutes).

One run of the tiny model trains all the while, beside a neighbor that is suspended and resumed every second: backups of
another run, one after the other (to a folder, and to ``rclone serve s3`` over https), offline W&B, and a program that
sleeps, which shows what is noise. Once a minute the neighbor changes. The step time of a second beside a neighbor at
work is divided by the mean of the seconds before and after, in which it was suspended. Printed are the median of these
ratios and its 95 % interval. The server has the priority of the backups; a real one runs on another machine. Also:
bytes sent for one more step, per new byte.
"""

from __future__ import annotations

import math
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import RunDir, StatusWriter
from grpo_train.run_dir.files import parse_time
from grpo_train.run_dir.machine import give_way
from grpo_train.tiny.model import make_tiny_model
from tests.bench import backup as transfers
from tests.support.backups import backup, folder_destination
from tests.support.engine import GRPO_TRAIN, environment, grpo_train, rows, run_of, train_here, wait_for, write_config
from tests.support.s3_servers import running_rclone

ROUNDS, SWITCHES, EVERY_S = 4, 24, 1.0
START_S = 8.0
"""Seconds that a neighbor has to start."""
Window = tuple[str, bool, float, float]
"""A neighbor, whether it was at work, begin and end."""


def size_of(run: RunDir) -> int:
    """Bytes of the checkpoints and logs of a run."""
    folders = (run.training_state, run.logs)
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def sent_per_new_byte(root: Path) -> tuple[int, int]:
    """(bytes sent, new bytes) of the backup after one more step."""
    cfg = write_config(root, "sent.yaml", run__total_steps=3)
    run, to = train_here(root, cfg, "sent"), folder_destination(root / "store")
    backup(run, to)
    before = size_of(run)
    done = grpo_train("resume", "--training-run", "sent", "--additional-steps", 1, root=root, real=True)
    assert done.returncode == 0, done.stderr
    return backup(run, to).bytes_sent, size_of(run) - before


# ------------------------------------------------------------------------------------------------------ neighbors


@contextmanager
def new_destination(home: Path, kind: str) -> Iterator[None]:
    """``backup.yaml`` in a home of its own, with an empty destination: ``folder`` or ``s3``."""
    (home / "grpo-tui").mkdir()
    (home / "store" / "bench").mkdir(parents=True)
    with ExitStack() as stack:
        place: dict[str, str] = {"name": "disk", "folder": str(home / "store")}
        if kind == "s3":
            server = stack.enter_context(running_rclone(home / "store"))
            place = transfers.destination_of(server, home / "key")
        (home / "grpo-tui" / "backup.yaml").write_text(yaml.safe_dump({"destinations": [place]}))
        yield


def back_up_for_ever(folder: Path, kind: str) -> None:
    """Back up a large run, which says that it trains, again and again, as a backup after each save does."""
    give_way()  # the server, too
    run = RunDir(folder / "other" / "training_runs" / "bench")
    status = StatusWriter(run.path)
    for left in folder.glob("tmp*"):
        shutil.rmtree(left)
    while True:
        status.update(state="running", stage="train")
        with tempfile.TemporaryDirectory(dir=folder) as name, new_destination(Path(name), kind):
            (run.path / ".backup.json").unlink(missing_ok=True)
            subprocess.run(
                [*GRPO_TRAIN, "backup", "--training-run", run.name, "--root", str(run.root)],
                env=environment(XDG_CONFIG_HOME=name, XDG_STATE_HOME=name),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )


def neighbors(folder: Path, run: RunDir) -> dict[str, list[str]]:
    """Their commands."""
    return {
        "folder": [sys.executable, __file__, "folder", str(folder)],
        "s3": [sys.executable, __file__, "s3", str(folder)],
        "tracking": [sys.executable, "-m", "grpo_train.tracking.wandb.sidecar", str(run.path), "offline"],
        "sleeping": ["sleep", "1000"],
    }


class Neighbor:
    """A program and everything that it starts, which can be suspended; its sessions are its own, as a backup's are."""

    def __init__(self, command: list[str]) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **quiet)

    def send(self, number: signal.Signals) -> None:
        assert self._process.poll() is None, f"{self._process.args} has ended"
        top = psutil.Process(self._process.pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def end(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait()


# -------------------------------------------------------------------------------------------------- the measurement


@contextmanager
def training(root: Path) -> Iterator[RunDir]:
    """A run that trains all the while."""
    cfg = write_config(root, "bench.yaml", run__total_steps=1_000_000, run__save_every=1_000_000)
    command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", "bench", "--root", str(root)]
    with subprocess.Popen(command, env=environment(root), stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            run = run_of(root, "bench")
            wait_for(lambda: (run.logs / "train_log.jsonl").exists() and len(rows(run)) >= 20, "20 steps")
            yield run
        finally:
            process.terminate()


def watch(commands: dict[str, list[str]]) -> list[Window]:
    """Suspend and resume each neighbor in turn; begins and ends with it suspended."""
    windows: list[Window] = []
    for _ in range(ROUNDS):
        for name, command in commands.items():
            neighbor = Neighbor(command)
            time.sleep(START_S)
            for turn in range(2 * SWITCHES + 1):
                at_work = turn % 2 == 1
                neighbor.send(signal.SIGCONT if at_work else signal.SIGSTOP)
                began = time.time()
                time.sleep(EVERY_S)
                windows.append((name, at_work, began, time.time()))
            neighbor.end()
    return windows


def ratios(run: RunDir, windows: list[Window]) -> dict[str, list[float]]:
    """Median step time of each window with a neighbor at work / mean of those before and after, by neighbor."""
    steps = [(parse_time(row["time"]), row["time/step"]) for row in rows(run)]
    seconds = [
        statistics.median(taken for ended, taken in steps if begin < ended - taken and ended < end)
        for _, _, begin, end in windows
    ]
    seen: dict[str, list[float]] = defaultdict(list)
    for index, (name, at_work, _, _) in enumerate(windows):
        if at_work:
            seen[name].append(seconds[index] / statistics.mean((seconds[index - 1], seconds[index + 1])))
    return seen


def median_and_interval(values: list[float]) -> str:
    """The median and its 95 % interval from order statistics (normal approximation of the binomial)."""
    ordered, count = sorted(values), len(values)
    reach = 0.98 * math.sqrt(count)
    low, high = max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach) - 1)
    return f"{statistics.median(ordered):.3f} ({ordered[low]:.3f}-{ordered[high]:.3f})"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as name:
        folder, root = Path(name), Path(name, "root")
        make_tiny_model(root / "models" / "tiny")
        sent, new = sent_per_new_byte(root)
        transfers.row(f"one more step: bytes sent per new byte ({new:,} new)", f"{sent / new:.3f}", "1.05")
        transfers.make_run(folder / "other", gib=0.5)
        with training(root) as run:
            seen = ratios(run, watch(neighbors(folder, run)))
        for what, label, aim in (
            ("folder", "backups to a folder", "1.02"),
            ("s3", "backups to S3", "1.02"),
            ("tracking", "offline W&B", "1.02"),
            ("sleeping", "a program that sleeps", ""),
        ):
            transfers.row(f"step time beside {label} / alone", median_and_interval(seen[what]), aim)


if __name__ == "__main__":
    if len(sys.argv) == 3:  # a neighbor
        back_up_for_ever(Path(sys.argv[2]), sys.argv[1])
    else:
        main()
