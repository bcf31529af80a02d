"""Round trips of a connection, counted on a line of constant delay."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from pathlib import Path

import pytest

from remote.boxes import Box
from remote.events import Link
from tests.support.agent import connected
from tests.support.line import Chunk, Line, round_trips
from tests.support.opening import Kind
from tests.support.patience import PATIENCE
from tests.support.sshd import Sshd

ROUND_TRIP_S = 0.05


def test_chains_of_answers_are_counted() -> None:
    """Each side computes for a while; what was sent without waiting is not counted."""
    sent = [(0.0, False), (0.01, True), (0.3, False), (0.36, True), (0.37, False), (0.9, False), (1.5, True)]
    chunks = [Chunk(at, back, 1) for at, back in sent]
    assert round_trips(chunks, 0.1, until=0.2) == 0
    assert round_trips(chunks, 0.1, until=0.5) == 1
    assert round_trips(chunks, 0.1, until=9.0) == 2


@pytest.mark.parametrize(("transport", "more"), [("openssh", 2), ("paramiko", 0)])
def test_a_known_box_costs_few_round_trips(tmp_path: Path, transport: Kind, more: int) -> None:
    """Beyond ``ssh box true`` at most; one is necessary, because a session accepts no input before it is started."""
    hosts = tmp_path / "hosts"
    with (
        Sshd(tmp_path) as sshd,
        Line(sshd.port, ROUND_TRIP_S, tmp_path / "theirs") as line,
        Line(sshd.port, ROUND_TRIP_S, tmp_path / "ours") as own_line,
    ):
        kind, blob = Path(f"{sshd.host_key}.pub").read_text().split()[:2]
        hosts.write_text(f"h200 {kind} {blob}\n")
        near = Box("h200", "127.0.0.1", sshd.user, sshd.port, str(sshd.user_key), transport=transport)
        with connected(near, host_keys_file=hosts) as (_, recorder):
            recorder.wait_link(Link.CONNECTED, PATIENCE * 15)
        command = ["ssh", "-F", "/dev/null", "-p", str(line.port), "-i", str(sshd.user_key), "-o", "IdentitiesOnly=yes"]
        command += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", f"{sshd.user}@127.0.0.1"]
        subprocess.run([*command, "true"], check=True, capture_output=True)
        theirs = round_trips(line.chunks(), ROUND_TRIP_S, time.monotonic())
        far = dataclasses.replace(near, port=own_line.port)
        with connected(far, host_keys_file=hosts) as (_, recorder):
            recorder.wait_link(Link.CONNECTED, PATIENCE * 15)
            ours = round_trips(own_line.chunks(), ROUND_TRIP_S, time.monotonic())
    assert theirs >= 6
    assert ours <= theirs + more
