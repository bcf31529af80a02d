"""What backups and tracking cost a training run: ``python tests/bench/backup_training.py``.

Step times are medians over runs of the tiny model in turns: alone, with backups of another run at work all the time (to
a folder, and to ``rclone serve s3`` over https), and with offline W&B. The server runs on this machine, at the priority
of the backups; a real one runs elsewhere. On many virtual machines two processors are one core, or share its power: the
cost of a program that only hashes, at the same priority, says what any neighbor costs there. Also: bytes sent for one
more step, per new byte.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import RunDir, StatusWriter
from grpo_train.tiny.model import make_tiny_model
from tests.bench import backup as transfers
from tests.support.backups import backup, folder_destination
from tests.support.engine import GRPO_TRAIN, environment, grpo_train, rows, run_of, train_here, write_config
from tests.support.s3_servers import running_rclone

TURNS, STEPS = 3, 60


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


@contextmanager
def new_destination(home: Path, kind: str) -> Iterator[None]:
    """``backup.yaml`` in a home of its own, with an empty destination: ``folder`` or ``s3``."""
    (home / "grpo-tui").mkdir()
    (home / "store" / "bench").mkdir(parents=True)
    with ExitStack() as stack:
        place: dict[str, str] = {"name": "disk", "folder": str(home / "store")}
        if kind == "s3":
            server = stack.enter_context(running_rclone(home / "store"))
            for thread in os.listdir(f"/proc/{server.pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), 19)
            place = transfers.destination_of(server, home / "key")
        (home / "grpo-tui" / "backup.yaml").write_text(yaml.safe_dump({"destinations": [place]}))
        yield


@contextmanager
def backups_at_work(folder: Path, kind: str) -> Iterator[None]:
    """Back up a large run, which says that it trains, again and again, as a backup after each save does."""
    ended = threading.Event()
    root = folder / "other"
    if not root.exists():
        transfers.GIB = 0.5
        transfers.make_run(root)
    status = StatusWriter(root / "training_runs" / "bench")

    def work() -> None:
        while not ended.is_set():
            status.update(state="running", stage="train")
            with tempfile.TemporaryDirectory(dir=folder) as name, new_destination(Path(name), kind):
                (root / "training_runs" / "bench" / ".backup.json").unlink(missing_ok=True)
                subprocess.run(
                    [*GRPO_TRAIN, "backup", "--training-run", "bench", "--root", str(root)],
                    env=environment(XDG_CONFIG_HOME=name, XDG_STATE_HOME=name),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    check=True,
                )

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        status.close()


@contextmanager
def hashing() -> Iterator[None]:
    """A program beside, at the priority of the backups, that touches no disk."""
    code = "import hashlib\nblock = bytes(1 << 20)\nwhile True: hashlib.sha256(block)"
    with subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


def step_time(root: Path, name: str, **changes: Any) -> float:
    """Median seconds of a step of a new run."""
    cfg = write_config(root, f"{name}.yaml", run__total_steps=STEPS, run__save_every=STEPS, **changes)
    command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", name, "--root", str(root)]
    subprocess.run(command, env=environment(root), stdout=subprocess.DEVNULL, start_new_session=True, check=True)
    return statistics.median(row["time/step"] for row in rows(run_of(root, name))[5:])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as name:
        folder, root = Path(name), Path(name, "root")
        make_tiny_model(root / "models" / "tiny")
        sent, new = sent_per_new_byte(root)
        seen: dict[str, list[float]] = defaultdict(list)
        load = os.getloadavg()[0]
        for turn in range(TURNS):
            seen["alone"].append(step_time(root, f"alone-{turn}"))
            for kind in ("folder", "s3"):
                with backups_at_work(folder, kind):
                    time.sleep(2)  # its start is not what is measured
                    seen[f"backups to {kind}"].append(step_time(root, f"{kind}-{turn}"))
            with hashing():
                seen["hashing"].append(step_time(root, f"hashing-{turn}"))
            seen["tracking"].append(step_time(root, f"tracking-{turn}", tracking__wandb="offline"))
        transfers.row(f"one more step: bytes sent per new byte ({new:,} new)", f"{sent / new:.3f}", "1.05")
        transfers.row(f"step alone, load {load:.1f}", f"{1000 * statistics.median(seen['alone']):.0f} ms")
        for what, beside in (
            ("backups to folder", "alone"), ("backups to s3", "alone"), ("hashing", "alone"),
            ("backups to folder", "hashing"), ("backups to s3", "hashing"), ("tracking", "alone"),
        ):  # fmt: skip
            each = [one / other for one, other in zip(seen[what], seen[beside], strict=True)]
            shown = f"{statistics.median(each):.3f} ({min(each):.2f}-{max(each):.2f})"
            other = "alone" if beside == "alone" else f"with {beside}"
            aim = "1.02" if beside == "alone" and what != "hashing" else ""
            transfers.row(f"step with {what} at work / {other}", shown, aim)


if __name__ == "__main__":
    main()
