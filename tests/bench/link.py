"""Figures of the link over a loopback sshd: ``python tests/bench/link.py [NAME ...]``; each line has its aim.

The names are those of the functions below without ``bench_``. LINK_MB sets the size of the tailed log (default 500),
LINK_RUNS the repetitions of each time (default 5; medians are printed). The proxy delays every chunk of at most 64 KiB
by half the round trip, one after the other, so uploads are slower than on a line of that delay.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, ClientEvent, HostKeyAsked, Link, LinkChanged, LogArrived
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd

MEGABYTES = int(os.environ.get("LINK_MB", "500"))
RUNS = int(os.environ.get("LINK_RUNS", "5"))
TICK = os.sysconf("SC_CLK_TCK")


class Bench:
    """A box behind a proxy, and a laptop with its own files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        self.sshd = Sshd(folder)
        self.proxy = ChaosProxy(self.sshd.port)
        self.known_hosts = folder / "known_hosts"
        self.box = self.at(self.proxy.port)

    def at(self, port: int) -> Box:
        return Box(
            "bench",
            host="127.0.0.1",
            port=port,
            user=self.sshd.user,
            key=str(self.sshd.user_key),
            root=str(self.root),
            tmux_socket=f"grpo-bench-{secrets.token_hex(4)}",
        )

    @contextmanager
    def connected(self, box: Box | None = None) -> Iterator[Laptop]:
        laptop = Laptop()
        laptop.client = BoxClient(box or self.box, laptop, host_keys_file=self.known_hosts)
        began = time.monotonic()
        laptop.client.start()
        try:
            laptop.connect_s = laptop.wait_link(Link.CONNECTED, since=began) - began
            yield laptop
        finally:
            laptop.client.close()

    def ssh(self, port: int, command: str) -> float:
        """Seconds that OpenSSH takes for a command."""
        argv = ["ssh", "-F", "/dev/null", "-p", str(port), "-i", str(self.sshd.user_key), "-o", "IdentitiesOnly=yes"]
        argv += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        began = time.monotonic()
        subprocess.run([*argv, f"{self.sshd.user}@127.0.0.1", command], check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began

    def close(self) -> None:
        self.proxy.close()
        self.sshd.stop()


class Laptop:
    """The owner of a client: returns credit at once, and keeps the time of every event that a figure needs."""

    def __init__(self) -> None:
        self.client: BoxClient
        self.connect_s = 0.0
        self.agent_pid = 0
        self.received = 0
        self.on_data: Callable[[LogArrived], None] = lambda event: None
        self._links: list[tuple[float, Link]] = []
        self._changed = threading.Condition()

    def __call__(self, event: ClientEvent) -> None:
        now = time.monotonic()
        if isinstance(event, HostKeyAsked):
            self.client.answer_host_key(True)
        with self._changed:
            if isinstance(event, LinkChanged):
                self._links.append((now, event.state))
            if isinstance(event, BoxGreeted):
                self.agent_pid = int(event.host["pid"])
            if isinstance(event, LogArrived):
                self.received += len(event.data)
                self.on_data(event)
            self._changed.notify_all()
        if isinstance(event, LogArrived):
            self.client.consumed(event.subscription, len(event.data))

    def wait(self, condition: Callable[[], object], timeout: float = 300.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), "timed out"

    def wait_link(self, state: Link, since: float) -> float:
        """When the link reached a state for the first time after ``since``."""
        found: list[float] = []

        def reached() -> bool:
            found[:] = [at for at, link in self._links if link is state and at >= since]
            return bool(found)

        self.wait(reached)
        return found[0]


def report(figure: str, value: str, aim: str = "", met: bool | None = None) -> None:
    verdict = "" if met is None else "met" if met else "NOT MET"
    print(f"{figure:<58} {value:<34} {aim:<34} {verdict}", flush=True)


def bench_tail(bench: Bench) -> None:
    """A whole log against ``ssh cat`` in the same run."""
    log, size = bench.root / "log", 0
    with log.open("wb") as file:
        while size < MEGABYTES * 1_000_000:
            rows = (
                f'{{"step": {size + i}, "loss": {random.random()}, "text": "{secrets.token_hex(80)}"}}\n'
                for i in range(2_000)
            )
            size += file.write("".join(rows).encode())
    cat = bench.ssh(bench.sshd.port, f"cat {log}")
    with bench.connected(bench.at(bench.sshd.port)) as laptop:
        began = time.monotonic()
        laptop.client.follow("log")
        laptop.wait(lambda: laptop.received >= size, 3_600)
        tail = time.monotonic() - began
    log.unlink()
    speeds = f"{cat / tail:.2f} ({size / tail / 1e6:.0f} against {size / cat / 1e6:.0f} MB/s)"
    report(f"tail of {MEGABYTES} MB, speed relative to ssh cat", speeds, "printed")


def bench_latency(bench: Bench) -> None:
    """From a line on disk to its LogArrived."""
    delays: list[float] = []
    log = bench.root / "events"
    log.touch()
    with bench.connected(bench.at(bench.sshd.port)) as laptop:
        laptop.on_data = lambda event: delays.extend(time.monotonic() - float(line) for line in event.data.split())
        laptop.client.follow("events")
        time.sleep(1)
        with log.open("a", buffering=1) as file:
            for count in range(200):
                time.sleep(random.uniform(0.0, 0.5))
                file.write(f"{time.monotonic()}\n")
                laptop.wait(lambda count=count: len(delays) > count)  # type: ignore[misc]
    p50, p95 = (1_000 * statistics.quantiles(delays, n=20)[index] for index in (9, 18))
    report("event on disk to LogArrived, p50", f"{p50:.0f} ms", "<= 60 ms", p50 <= 60)
    report("event on disk to LogArrived, p95", f"{p95:.0f} ms", "<= 150 ms", p95 <= 150)


def bench_connect(bench: Bench) -> None:
    """A warm connection over ``ssh box true``, side by side. The difference at 0 ms is computing, not round trips."""
    with bench.connected():
        pass  # the agent is stored, the host key known, paramiko imported
    computing = 0.0
    for milliseconds in (0, 80, 300):
        bench.proxy.delay(milliseconds / 2_000)
        ours, theirs = [], []
        for _ in range(RUNS):
            theirs.append(bench.ssh(bench.proxy.port, "true"))
            with bench.connected() as laptop:
                ours.append(laptop.connect_s)
        mine, ssh = statistics.median(ours), statistics.median(theirs)
        times = f"{mine:.2f} s against {ssh:.2f} s"
        figure = f"warm connect over ssh true, {milliseconds} ms"
        if not milliseconds:
            computing = mine - ssh
            report(figure, times, "0 round trips")
            continue
        trips = (mine - ssh - computing) / (milliseconds / 1_000)
        report(figure, f"{times}: {trips:+.1f} round trips", "<= 3 round trips more", trips <= 3)
    bench.proxy.pass_through()


def bench_first(bench: Bench) -> None:
    """A first connection, which uploads the agent."""
    with bench.connected():
        pass
    bench.proxy.delay(0.04)
    times = []
    for _ in range(RUNS):
        shutil.rmtree(bench.sshd.home / ".grpo")
        with bench.connected() as laptop:
            times.append(laptop.connect_s)
    bench.proxy.pass_through()
    seconds = statistics.median(times)
    report("first connect with upload, 80 ms", f"{seconds:.2f} s", "<= 2 s", seconds <= 2)


def bench_reconnect(bench: Bench) -> None:
    """From a reset, and from the end of a hole of 20 s, to the next connection."""
    resets, holes = [], []
    with bench.connected() as laptop:
        for _ in range(RUNS):
            time.sleep(12)  # a settled link: the back-off begins anew
            began = time.monotonic()
            bench.proxy.reset()
            resets.append(laptop.wait_link(Link.CONNECTED, since=laptop.wait_link(Link.LOST, began)) - began)
        for _ in range(2):
            time.sleep(12)
            began = time.monotonic()
            bench.proxy.black_hole()
            time.sleep(20)
            ended = time.monotonic()
            bench.proxy.pass_through()
            lost = laptop.wait_link(Link.LOST, began)
            holes.append(laptop.wait_link(Link.CONNECTED, since=max(lost, ended)) - ended)
    reset, hole = statistics.median(resets), max(holes)
    report("reconnect after a reset", f"{reset:.2f} s", "<= 1.5 s", reset <= 1.5)
    report("reconnect after a hole of 20 s, from its end, worst of 2", f"{hole:.2f} s", "<= 3 s", hole <= 3)


def bench_idle(bench: Bench) -> None:
    """The agent without work, and with 10,000 followed files that do not change."""
    files = bench.root / "many"
    files.mkdir()
    for index in range(10_000):
        (files / str(index)).write_bytes(b"x" * 199 + b"\n")
    with bench.connected(bench.at(bench.sshd.port)) as laptop:
        laptop.wait(lambda: laptop.agent_pid)
        time.sleep(5)
        _report_idle(laptop.agent_pid, "agent idle", 30, 0.5)
        for index in range(10_000):
            laptop.client.follow(f"many/{index}")
        laptop.wait(lambda: laptop.received >= 10_000 * 200)
        time.sleep(10)
        _report_idle(laptop.agent_pid, "agent with 10,000 followed files", 50, 10)
    shutil.rmtree(files)


def _report_idle(pid: int, figure: str, most_mb: float, most_percent: float, seconds: float = 30.0) -> None:
    def cpu() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    before = cpu()
    time.sleep(seconds)
    percent = 100 * (cpu() - before) / seconds
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    megabytes = next(int(line.split()[1]) / 1_000 for line in status if line.startswith("VmRSS"))
    report(f"{figure}, memory", f"{megabytes:.0f} MB", f"<= {most_mb} MB", megabytes <= most_mb)
    report(f"{figure}, CPU", f"{percent:.1f} % of a core", f"<= {most_percent} %", percent <= most_percent)


FIGURES = {
    "latency": bench_latency,
    "connect": bench_connect,
    "first": bench_first,
    "reconnect": bench_reconnect,
    "idle": bench_idle,
    "tail": bench_tail,
}


def main(names: list[str]) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_CONFIG_HOME"] = folder
        os.environ.pop("SSH_AUTH_SOCK", None)
        bench = Bench(Path(folder))
        try:
            for name in names or FIGURES:
                FIGURES[name](bench)
        finally:
            bench.close()


if __name__ == "__main__":
    main(sys.argv[1:])
