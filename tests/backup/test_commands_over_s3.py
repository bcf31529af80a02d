"""What a user reads when a command meets a store in trouble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.cli import transfer
from tests.support.clock import LeapingClock
from tests.support.engine import command_here
from tests.support.s3_faults import Fault, Faults, FaultyRequests
from tests.support.s3_servers import SECRET, server
from tests.support.stores import describe_bucket


@pytest.fixture
def front() -> Iterator[Faults]:
    with FaultyRequests(server("rclone")) as opened:
        yield opened


def test_a_wait_is_announced_with_its_cause(front: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in 30 s."""
    monkeypatch.setattr(transfer, "CLOCK", LeapingClock())
    describe_bucket(front.server.new_bucket(), front.server, port=front.port)
    for times, said in ((2, 1), (4, 2)):
        front.add(Fault("refuse", code="SlowDown", times=times, headers={"Retry-After": "20"}))
        result = command_here("list-backups", root=tmp_path)
        assert result.returncode == 0, result.stderr
        assert f"waiting: https://127.0.0.1:{front.port} answers 503 SlowDown" in result.stderr
        assert result.stderr.count("waiting") == said


def test_a_refusal_ends_the_command_at_once(tmp_path: Path) -> None:
    running = server("rclone")
    source = describe_bucket(running.new_bucket(), running, secret="another-secret-of-a-user")
    result = command_here("list-backups", root=tmp_path)
    assert result.returncode == 2
    assert f"does not accept the secret access key from {source}" in result.stderr
    assert "another-secret" not in result.stderr + result.stdout
    assert SECRET not in result.stderr + result.stdout
