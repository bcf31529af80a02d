"""Figures of the link over a loopback sshd: ``python tests/bench/link.py [NAME ...]``; each line has its aim.

The names are those of the functions below without ``bench_``; all of them take about 8 minutes. LINK_MB sets the size
of the tailed log (default 500), LINK_COPY_MB that of the copied file (1,000), LINK_RUNS the repetitions of each time
(default 5; medians are printed). What is compared is measured in turns. Round trips are counted
(:mod:`tests.support.line`), so other load does not change them; times include computing. Connecting a socket takes no
time here: a real line adds one round trip to both sides.
"""

from __future__ import annotations

import itertools
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
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from remote.boxes import Box
from remote.client import BoxClient
from remote.copying import Copier
from remote.events import BoxGreeted, ClientEvent, HostKeyAsked, Link, LinkChanged, LogArrived
from remote.transports.openssh_setup import CIPHERS
from tests.support.line import Line, round_trips
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd

MEGABYTES = int(os.environ.get("LINK_MB", "500"))
COPY_MB = int(os.environ.get("LINK_COPY_MB", "1000"))
RUNS = int(os.environ.get("LINK_RUNS", "5"))
TICK = os.sysconf("SC_CLK_TCK")
Kind = Literal["openssh", "paramiko"]
KINDS: tuple[Kind, ...] = ("openssh", "paramiko")


class Bench:
    """A box, and a laptop with its own files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        self.sshd = Sshd(folder, extra="Subsystem sftp internal-sftp\n")  # for scp
        self.known_hosts = folder / "known_hosts"

    def box(self, port: int = 0, kind: Literal["auto", "openssh", "paramiko"] = "auto") -> Box:
        """The box at a port, sshd's own by default."""
        return Box(
            "bench",
            host="127.0.0.1",
            port=port or self.sshd.port,
            transport=kind,
            user=self.sshd.user,
            key=str(self.sshd.user_key),
            root=str(self.root),
            tmux_socket=f"grpo-bench-{secrets.token_hex(4)}",
        )

    @contextmanager
    def connected(self, box: Box) -> Iterator[Laptop]:
        laptop = Laptop()
        laptop.client = BoxClient(box, laptop, host_keys_file=self.known_hosts)
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

    def scp(self, source: object, target: object, *more: str) -> None:
        """Copy a file with OpenSSH, with ``more`` options."""
        argv = ["scp", "-q", "-F", "/dev/null", "-P", str(self.sshd.port), "-i", str(self.sshd.user_key)]
        argv += ["-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        subprocess.run([*argv, "-o", "LogLevel=ERROR", *more, str(source), str(target)], check=True)

    def line(self, round_trip_s: float) -> Line:
        return Line(self.sshd.port, round_trip_s, self.folder / "chunks")

    def close(self) -> None:
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
    print(f"{figure:<52} {value:<52} {aim:<24} {verdict}", flush=True)


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
    before = bench.ssh(bench.sshd.port, f"cat {log}")
    with bench.connected(bench.box()) as laptop:
        began = time.monotonic()
        laptop.client.follow("log")
        laptop.wait(lambda: laptop.received >= size, 3_600)
        tail = time.monotonic() - began
    cat = (before + bench.ssh(bench.sshd.port, f"cat {log}")) / 2
    log.unlink()
    speeds = f"{cat / tail:.2f} ({size / tail / 1e6:.0f} against {size / cat / 1e6:.0f} MB/s)"
    report(f"tail of {MEGABYTES} MB, speed relative to ssh cat", speeds, "printed")


def bench_copy(bench: Bench) -> None:
    """``get`` and ``put`` of a large file against ``scp`` of it in turns, also with the cipher of our ssh."""
    source = bench.folder / "weights.bin"
    with source.open("wb") as file:
        for _ in range(COPY_MB):
            file.write(random.randbytes(1_000_000))
    (bench.root / "here").mkdir()
    shutil.copy(source, bench.root / "here" / source.name)
    target = f"{bench.sshd.user}@127.0.0.1:{bench.root}"
    peers = {"scp": [], "scp with AES-GCM": ["-o", f"Ciphers={CIPHERS}"]}
    kinds = {**dict.fromkeys(peers), **{kind: bench.box(kind=kind) for kind in KINDS}}
    for way in ("get", "put"):
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(3):
            for kind, box in kinds.items():
                place = bench.root / "there.bin" if way == "put" else bench.folder / "got" / source.name
                place.parent.mkdir(exist_ok=True)
                began = time.monotonic()
                if box is None:
                    pair = (source, f"{target}/there.bin") if way == "put" else (f"{target}/here/{source.name}", place)
                    bench.scp(*pair, *peers[kind])
                else:
                    with Copier(box, ask_host_key=lambda question: True) as copier:
                        if way == "put":
                            copier.put(source, "there.bin")
                        else:
                            copier.get(f"here/{source.name}", place.parent)
                times[kind].append(time.monotonic() - began)
                place.unlink()
        for kind, peer in itertools.product(KINDS, peers):
            ours, theirs = statistics.median(times[kind]), statistics.median(times[peer])
            speeds = f"{theirs / ours:.2f} ({COPY_MB / ours:.0f} against {COPY_MB / theirs:.0f} MB/s)"
            report(f"{way} of {COPY_MB} MB over {kind} / {peer}", speeds, ">= 0.7", theirs / ours >= 0.7)


def bench_latency(bench: Bench) -> None:
    """From a line on disk to its LogArrived."""
    delays: list[float] = []
    log = bench.root / "events"
    log.touch()
    with bench.connected(bench.box()) as laptop:
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
    """A warm connection over ``ssh box true``, in turns."""
    for kind in KINDS:
        with bench.connected(bench.box(kind=kind)) as laptop:  # the agent is stored and compiled, the host key known
            laptop.client.request("list_runs").result(60)
            time.sleep(2)
    for round_trip_s in (0.0, 0.08, 0.3):
        with bench.line(round_trip_s) as line:
            for kind in KINDS:
                _compare(bench, line, kind, round_trip_s)


def _compare(bench: Bench, line: Line, kind: Kind, round_trip_s: float) -> None:
    times: dict[str, list[float]] = {"ours": [], "ssh": []}
    trips = {"ours": 0, "ssh": 0}

    def measure(name: str, connect: Callable[[], float]) -> None:
        start, began = len(line.chunks()), time.monotonic()
        times[name].append(connect())
        trips[name] = round_trips(line.chunks()[start:], round_trip_s, began + times[name][-1])
        time.sleep(0.1 + round_trip_s)  # the end of the connection has passed the line

    def ours() -> float:
        with bench.connected(bench.box(line.port, kind)) as laptop:
            return laptop.connect_s

    for _ in range(RUNS):
        measure("ssh", lambda: bench.ssh(line.port, "true"))
        measure("ours", ours)
    mine, ssh = statistics.median(times["ours"]), statistics.median(times["ssh"])
    figure = f"warm connect over ssh true, {kind}, {round_trip_s * 1_000:.0f} ms"
    if not round_trip_s:
        report(figure, f"{mine:.2f} s against {ssh:.2f} s, all of it computing", "printed")
        return
    more = trips["ours"] - trips["ssh"]
    worth = (mine - ssh) / round_trip_s
    value = f"{trips['ours']} round trips against {trips['ssh']}"
    report(figure, value, "<= 3 round trips more", more <= 3)
    value = f"{mine:.2f} s against {ssh:.2f} s, worth {worth:+.1f} round trips"
    report(f"{figure}, with computing", value, "<= 3 round trips more", worth <= 3)


def bench_first(bench: Bench) -> None:
    """A first connection, which uploads the agent."""
    for kind in KINDS:
        with bench.connected(bench.box(kind=kind)):
            pass  # the host key is known
        times = []
        with bench.line(0.08) as line:
            for _ in range(RUNS):
                shutil.rmtree(bench.sshd.home / ".grpo")
                with bench.connected(bench.box(line.port, kind)) as laptop:
                    times.append(laptop.connect_s)
        seconds = statistics.median(times)
        report(f"first connect with upload, {kind}, 80 ms", f"{seconds:.2f} s", "<= 2 s", seconds <= 2)


def bench_reconnect(bench: Bench) -> None:
    """From a reset, and from the end of a hole of 20 s, to the next connection; both transports at the same time."""
    found: dict[Kind, tuple[float, float]] = {}

    def measure(kind: Kind) -> None:
        with ChaosProxy(bench.sshd.port) as proxy, bench.connected(bench.box(proxy.port, kind)) as laptop:
            resets = []
            for _ in range(RUNS):
                time.sleep(12)  # a settled link: the back-off begins anew
                began = time.monotonic()
                proxy.reset()
                resets.append(laptop.wait_link(Link.CONNECTED, since=laptop.wait_link(Link.LOST, began)) - began)
            holes = []
            for _ in range(2):
                time.sleep(12)
                began = time.monotonic()
                proxy.black_hole()
                time.sleep(20)
                ended = time.monotonic()
                proxy.pass_through()
                lost = laptop.wait_link(Link.LOST, began)
                holes.append(laptop.wait_link(Link.CONNECTED, since=max(lost, ended)) - ended)
            found[kind] = statistics.median(resets), max(holes)

    threads = [threading.Thread(target=measure, args=(kind,)) for kind in KINDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kind, (reset, hole) in sorted(found.items()):
        report(f"reconnect after a reset, {kind}", f"{reset:.2f} s", "<= 1.5 s", reset <= 1.5)
        report(f"reconnect from the end of a 20 s hole, {kind}", f"{hole:.2f} s (worst of 2)", "<= 3 s", hole <= 3)


def bench_hour(bench: Bench) -> None:
    """Not measured here: it takes an hour."""
    test = "tests/soak/test_link_standing.py"
    report("1 h, 1,000 lines/s, a fault a minute", f"make soak ({test})", "equal bytes, 20 MB")


def bench_idle(bench: Bench) -> None:
    """The agent without work, and with 10,000 followed files that do not change."""
    files = bench.root / "many"
    files.mkdir()
    for index in range(10_000):
        (files / str(index)).write_bytes(b"x" * 199 + b"\n")
    with bench.connected(bench.box()) as laptop:
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
    "copy": bench_copy,
    "hour": bench_hour,
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
