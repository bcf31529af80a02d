"""Faults while a link opens: a box behind a fault proxy, the places of a clean opening, and what a client said.

    with opening(folder) as lane:
        places = lane.places(upload=False)
        lane.survive(faults)

A lane has its own sshd, so that lanes can run side by side.
"""

from __future__ import annotations

import faulthandler
import os
import random
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from remote.boxes import Box
from remote.client import BoxClient
from remote.events import Link, LinkChanged
from remote.transports.transport import Timing
from tests.support.agent import Recorder, agents, eventually
from tests.support.clock import TestClock
from tests.support.proxy import ChaosProxy, Fault
from tests.support.sshd import Sshd

FALSE = re.compile(r"python|key refused|shell|refused|no ssh server|changed|not accepted", re.IGNORECASE)
"""Words that are false when only the network failed."""
NEWKEYS = 21
Kind = Literal["paramiko", "openssh"]
TRANSPORT: Kind = "openssh" if os.environ.get("LINK_TRANSPORT") == "openssh" else "paramiko"
"""Of long runs."""


@dataclass(frozen=True)
class Places:
    """Lengths of the parts of an opening in one direction, in bytes."""

    exchange: int
    """Banner and key exchange, which are plain text."""
    opening: int
    """Everything until the agent's first frames have arrived."""


class Lane:
    """A box, a bad network and a client's files."""

    def __init__(self, folder: Path, sshd: Sshd, proxy: ChaosProxy, timing: Timing, transport: Kind) -> None:
        self.sshd = sshd
        self.proxy = proxy
        self.timing = timing
        """Of its client; long runs shorten it."""
        self.hosts = folder / "hosts"
        kind, blob = Path(f"{sshd.host_key}.pub").read_text().split()[:2]
        self.hosts.write_text(f"h200 {kind} {blob}\n")
        key = str(sshd.user_key)
        self.box = Box("h200", "127.0.0.1", sshd.user, proxy.port, key, transport=transport)
        self.events: list[LinkChanged] = []
        """Every link event of this lane."""
        self.leaks: list[tuple[int, int]] = []
        """Descriptors and threads of this process after each fault."""

    def places(self, upload: bool) -> dict[bool, Places]:
        """The parts of an opening without faults, for both directions."""
        if upload:
            self.forget_agent()
        elif not list((self.sshd.home / ".grpo/agent").glob("*.pyz")):
            self.survive([])
        recorder = Recorder()
        client = self._client(recorder)
        client.start()
        recorder.wait_link(Link.CONNECTED, timeout=30)
        connection = self.proxy.last
        assert connection
        found = {
            back: Places(_exchange(bytes(connection.heads[back])), connection.passed[back]) for back in (False, True)
        }
        client.close()
        return found

    def _client(self, recorder: Recorder) -> BoxClient:
        client = BoxClient(self.box, recorder, host_keys_file=self.hosts, timing=self.timing)
        recorder.client = client
        return client

    def forget_agent(self) -> None:
        """Remove the stored agent, so that the next opening uploads it."""
        for file in (self.sshd.home / ".grpo/agent").glob("*"):
            file.unlink(missing_ok=True)  # the compiled modules get their name meanwhile

    def survive(
        self, faults: Sequence[Fault], *, upload: bool = False, in_a_row: int = 1, timeout: float = 180.0
    ) -> int:
        """Give each fault a connection of its own; the client must then connect by itself. Returns faults fired.

        ``upload``: remove the stored agent before the faults. ``in_a_row``: faults before a connection without one.
        """
        fired = len(self.proxy.fired)
        recorder = Recorder(reconnects=True)
        client = self._client(recorder)
        client.start()
        try:
            recorder.wait_link(Link.CONNECTED, timeout)
            for start in range(0, len(faults), in_a_row):
                if upload:
                    self.forget_agent()
                row = faults[start : start + in_a_row]
                self.proxy.plan(*row)
                try:
                    while self.proxy.planned or client.link is not Link.CONNECTED:
                        mark, accepted = recorder.mark(), self.proxy.accepted
                        self.proxy.reset()  # some faults lie behind the opening
                        eventually(lambda accepted=accepted: self.proxy.accepted > accepted, timeout, "a connection")  # type: ignore[misc]
                        recorder.wait_link(Link.CONNECTED, timeout, after=mark)
                except AssertionError as error:
                    faulthandler.dump_traceback(all_threads=True)
                    details = [event for event in recorder.events if isinstance(event, LinkChanged)][-12:]
                    print(f"{row}\n{details}")
                    raise AssertionError(f"{row}: {error}") from error
                self.leaks.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
        finally:
            client.close()
            self.events += [event for event in recorder.events if isinstance(event, LinkChanged)]
        return len(self.proxy.fired) - fired

    def survive_stall(self, stall: Fault) -> None:
        """The opening stalls for longer than a step may take; the client gives up, and connects by itself."""
        clock, recorder, fired = TestClock(), Recorder(), len(self.proxy.fired)
        client = BoxClient(self.box, recorder, host_keys_file=self.hosts, timing=self.timing, clock=clock)

        def lost() -> list[LinkChanged]:
            changes = [event for event in recorder.events if isinstance(event, LinkChanged)]
            return [event for event in changes if event.state is Link.LOST]

        self.proxy.plan(stall)
        client.start()
        try:
            eventually(lambda: self.proxy.fired[fired:], what="the stall")
            clock.advance_until(lost)
            clock.advance((lost()[0].retry_in_s or 0.0) + 0.1)  # what is shown is rounded
            recorder.wait_link(Link.CONNECTED)
        finally:
            client.close()
            self.events += [event for event in recorder.events if isinstance(event, LinkChanged)]

    def assert_truthful(self) -> None:
        """No event blames the box for what the network did."""
        for event in self.events:
            assert event.state is not Link.REFUSED, event
            assert not FALSE.search(event.detail), event

    def assert_no_agent_left(self) -> None:
        """No agent is older than 15 s after its client."""
        eventually(lambda: not agents(self.sshd.home), 15, "the agents exit")


@contextmanager
def opening(folder: Path, timing: Timing | None = None, transport: Kind = "paramiko") -> Iterator[Lane]:
    folder.mkdir(parents=True, exist_ok=True)
    with Sshd(folder, knows_agent=True) as sshd, ChaosProxy(sshd.port) as proxy:
        yield Lane(folder, sshd, proxy, timing or Timing(), transport)


def side_by_side(
    lanes: Sequence[Lane], shares: Sequence[Sequence[Fault]], *, upload: bool = False, in_a_row: int = 1
) -> int:
    """Run each lane over its share of faults; returns faults fired. Raises the first failure."""
    results: list[int] = []
    failures: list[BaseException] = []

    def run(lane: Lane, share: Sequence[Fault]) -> None:
        try:
            results.append(lane.survive(share, upload=upload, in_a_row=in_a_row))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(lanes, shares, strict=True) if pair[1]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(results)


def mask(chance: random.Random) -> int:
    """Bits for a flipped byte."""
    return chance.randrange(1, 256)


def _exchange(head: bytes) -> int:
    """The length of banner and key exchange: lines until ``SSH-``, then plain packets until NEWKEYS."""
    end = 0
    while True:
        line = head[end : head.index(b"\n", end) + 1]
        end += len(line)
        if line.startswith(b"SSH-"):
            break
    while True:
        (length,) = struct.unpack(">I", head[end : end + 4])
        kind = head[end + 5]
        end += 4 + length
        if kind == NEWKEYS:
            return end
