"""Backups beside ``rclone copy``: ``python tests/bench/backup.py``; ``BACKUP_BENCH_GB=3`` is the default.

``grpo-train backup`` and ``restore`` against ``rclone copy`` of the same run, each with a new server of the same kind
(``rclone serve s3`` over https, on this machine), in turns, three times. That server cannot prove what it holds, so our
backup reads every byte back; ``rclone check --download`` gives a copy the same proof.

Server and client share the processors here, so processor time limits both; it is printed in seconds per GiB.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import RunDir, create_run, write_manifest
from grpo_train.run_dir.files import atomic_symlink
from tests.support.s3_front import Front
from tests.support.s3_servers import KEY_ID, SECRET, Server, running_rclone

GIB = float(os.environ.get("BACKUP_BENCH_GB", "3"))
TURNS = 3
FILES = 3_000
"""Small files of the run whose second backup is counted."""
TUNED = ("--transfers", "8", "--s3-chunk-size", "16M", "--s3-upload-concurrency", "4")
"""Larger parts, more files at once. Not known to be the best: nine other settings differed by less than the noise."""
_BLOCK = 16 << 20
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    seconds: float
    client: float
    """Processor seconds per GiB of the command, and of the server."""
    server: float
    memory: int
    """Peak of the command, MiB."""


def row(what: str, measured: str, aim: str = "") -> None:
    print(f"{what:<58}{measured:>14}{aim:>10}", flush=True)


def make_run(root: Path, gib: float = 0.0, files: int = 0) -> RunDir:
    """A run with two checkpoints of random bytes, GIB by default: weights, an optimizer state twice their size, and
    small ``files``."""
    run = create_run(root, {"argv": ["bench"]}, "bench")
    run.config_file.write_text("run: {total_steps: 20}\nmodel: {backbone: hub/model}\ntask: {name: addition}\n")
    for step in (10, 20):
        folder = run.training_state / f"step_{step}"
        (folder / "model").mkdir(parents=True)
        for name, share in (("model/model.safetensors", 1 / 6), ("optimizer.pt", 1 / 3)):
            left = int(share * (gib or GIB) * (1 << 30))
            with (folder / name).open("wb") as file:
                while left > 0:
                    left -= file.write(os.urandom(min(_BLOCK, left)))
        for number in range(files // 2):
            (folder / f"part-{number}").write_bytes(os.urandom(1_000))
        write_manifest(folder, format=1, step=step)
    atomic_symlink(run.training_state / "step_latest", "step_20")
    return run


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measured(command: list[str], environment: dict[str, str], server: Server, *, after_sync: bool = True) -> Cost:
    """Run a command to its end, at the priority of our backups; first everything earlier reaches the disk."""
    command = ["nice", "-n", "19", *command]
    if after_sync:
        os.sync()
    before, began = _processor(server.pid), time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    spent = _processor(server.pid) - before
    return Cost(seconds, (used.ru_utime + used.ru_stime) / GIB, spent / GIB, used.ru_maxrss >> 10)


def destination_of(server: Server, key: Path) -> dict[str, str]:
    """A destination for ``backup.yaml`` in the bucket ``bench``; ``key`` becomes the file of its credentials."""
    key.touch(0o600)
    key.write_text(f"AWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={SECRET}\n")
    place = {"name": "s3", "bucket": "bench", "endpoint": server.endpoint, "ca_file": server.ca_file}
    return {**place, "credentials": str(key)}


class Ours:
    """``grpo-train`` with a home of its own."""

    def __init__(self, folder: Path, root: Path, server: Server) -> None:
        shutil.rmtree(folder / "home", ignore_errors=True)
        (folder / "home" / "grpo-tui").mkdir(parents=True)
        text = yaml.safe_dump({"destinations": [destination_of(server, folder / "home" / "key")]})
        (folder / "home" / "grpo-tui" / "backup.yaml").write_text(text)
        home = str(folder / "home")
        # An installed program has its bytecode: where it is not written, each start compiles everything again.
        facts = {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_STATE_HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
        self._environment = {**os.environ, **facts}
        self._server, self.root = server, root

    def __call__(self, *words: str, root: Path | None = None) -> Cost:
        command = [sys.executable, "-m", "grpo_train.cli", *words, "--root", str(root or self.root)]
        return measured(command, self._environment, self._server)


def rclone(server: Server, *arguments: str) -> Cost:
    """Run rclone against the server."""
    facts = {
        "TYPE": "s3", "PROVIDER": "Rclone", "ENDPOINT": server.endpoint, "ACCESS_KEY_ID": KEY_ID,
        "SECRET_ACCESS_KEY": SECRET,
    }  # fmt: skip
    remote = {f"RCLONE_CONFIG_BENCH_{name}": value for name, value in facts.items()}
    environment = {
        **os.environ,
        **remote,
        "RCLONE_CA_CERT": server.ca_file,
        "RCLONE_CONFIG": "",
        "RCLONE_LOG_LEVEL": "ERROR",
    }
    return measured([str(Path(sys.executable).with_name("rclone")), *arguments], environment, server)


@contextmanager
def new_server(folder: Path) -> Iterator[Server]:
    """A server with an empty bucket."""
    (folder / "buckets" / "bench").mkdir(parents=True)
    try:
        with running_rclone(folder / "buckets") as running:
            yield running
    finally:
        shutil.rmtree(folder / "buckets")


def turn(folder: Path, run: RunDir, index: int) -> Iterator[tuple[str, Cost]]:
    """One turn of each side; every second one begins with theirs."""
    target = folder / "fetched"

    def ours() -> Iterator[tuple[str, Cost]]:
        with new_server(folder) as server:
            grpo_train = Ours(folder, run.root, server)
            grpo_train("backup", "--training-run", "bench", "--dry-run")  # compiles what was never started here
            yield "send", grpo_train("backup", "--training-run", "bench")
            yield "again", grpo_train("backup", "--training-run", "bench")
            yield "verify", grpo_train("verify-backup", "bench")
            yield "fetch", grpo_train("restore", "--training-run", "bench", root=target)
            shutil.rmtree(target)

    def theirs(name: str, settings: tuple[str, ...]) -> Iterator[tuple[str, Cost]]:
        with new_server(folder) as server:
            yield f"{name} send", rclone(server, "copy", *settings, str(run.path), "bench:bench")
            yield f"{name} check", rclone(server, "check", "--download", str(run.path), "bench:bench")
            yield f"{name} fetch", rclone(server, "copy", *settings, "bench:bench", str(target))
            yield f"{name} flush", measured(["sync", "-f", str(target)], dict(os.environ), server, after_sync=False)
            shutil.rmtree(target)

    sides = [ours(), theirs("rclone", ()), theirs("tuned", TUNED)]
    for side in sides[::-1] if index % 2 else sides:
        yield from side


def unchanged(folder: Path, files: int) -> tuple[Counter[str], float]:
    """(requests that reach the server by method, seconds) of the second backup of a run with small ``files``."""
    run = make_run(folder / f"root-{files}", 0.01, files)
    with new_server(folder) as server, Front(server) as front:
        grpo_train = Ours(folder, run.root, server)
        grpo_train("backup", "--training-run", "bench")
        seconds = grpo_train("backup", "--training-run", "bench").seconds
        counted = Ours(folder, run.root, replace(server, endpoint=f"https://127.0.0.1:{front.port}"))
        counted("backup", "--training-run", "bench")
        front.seen.clear()
        counted("backup", "--training-run", "bench")
        return Counter(method for method, _ in front.seen), seconds


def main() -> None:
    seen: dict[str, list[Cost]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as name:
        folder = Path(name)
        run = make_run(folder / "root")
        row(f"{GIB:g} GiB in 2 checkpoints, load {os.getloadavg()[0]:.1f}", "measured", "aim")
        for index in range(TURNS):
            for what, cost in turn(folder, run, index):
                seen[what].append(cost)
                shown = f"processor {cost.client:4.1f} + {cost.server:4.1f} s/GiB  {cost.memory} MiB"
                print(f"  turn {index + 1}  {what:<14}{cost.seconds:7.1f} s  {shown}", flush=True)
        fixed, _ = unchanged(folder, 0)
        requests, seconds = unchanged(folder, FILES)

    def ratio(one: str, *other: str) -> str:
        each = [sum(seen[o][i].seconds for o in other) / seen[one][i].seconds for i in range(TURNS)]
        return f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})"

    def share(one: str, *other: str) -> str:
        def total(what: str) -> float:
            return statistics.median(cost.client + cost.server for cost in seen[what])

        return f"{sum(map(total, other)) / total(one):.2f}"

    row("send with the proof: rclone copy / ours", ratio("send", "rclone send"), "0.80")
    row("  with the settings that suit rclone best", ratio("send", "tuned send"), "0.80")
    row("  rclone copy, then check --download / ours", ratio("send", "rclone send", "rclone check"))
    row("  processor time of client and server: rclone / ours", share("send", "rclone send"))
    row("  share of reading back (verify-backup / backup)", ratio("send", "verify"))
    row("fetch, hashed and on the disk: rclone copy / ours", ratio("fetch", "rclone fetch"), "0.80")
    row("  with the settings that suit rclone best", ratio("fetch", "tuned fetch"), "0.80")
    row("  rclone copy, then sync / ours", ratio("fetch", "rclone fetch", "rclone flush"))
    row("  processor time of client and server: rclone / ours", share("fetch", "rclone fetch"))
    row("second backup, nothing new", f"{max(cost.seconds for cost in seen['again']):.1f} s", "2 s")
    row(f"  of a run of {FILES:,} small files", f"{seconds:.1f} s", "2 s")
    methods = ", ".join(f"{count} {method}" for method, count in sorted(requests.items()))
    row(f"  its requests: {methods}", str(requests.total()))
    more = (requests - fixed).total() / (FILES / 1_000)
    row("  requests for each 1,000 files, beyond those of a run without", f"{more:.1f}", "3")
    row("memory of ours", f"{max(c.memory for w in ('send', 'verify', 'fetch') for c in seen[w])} MiB", "400 MiB")


if __name__ == "__main__":
    main()
