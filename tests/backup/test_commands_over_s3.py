"""What a user reads when a command meets a store in trouble."""

from __future__ import annotations

from pathlib import Path

from tests.support.engine import grpo_train
from tests.support.s3_front import Fault, Front
from tests.support.s3_servers import SECRET, server
from tests.support.stores import describe_bucket


def test_a_wait_is_announced_with_its_cause(tmp_path: Path) -> None:
    with Front(server("rclone")) as front:
        describe_bucket(front.server.new_bucket(), front.server, port=front.port)
        front.add(Fault("refuse", code="SlowDown", times=2))
        result = grpo_train("list-backups", "--root", tmp_path, root=None)
    assert result.returncode == 0, result.stderr
    assert f"waiting: https://127.0.0.1:{front.port} answers 503 SlowDown" in result.stderr
    assert result.stderr.count("waiting") == 1


def test_a_refusal_ends_the_command_at_once(tmp_path: Path) -> None:
    running = server("rclone")
    source = describe_bucket(running.new_bucket(), running, secret="another-secret-of-a-user")
    result = grpo_train("list-backups", "--root", tmp_path, root=None)
    assert result.returncode == 2
    assert f"does not accept the secret access key from {source}" in result.stderr
    assert "another-secret" not in result.stderr + result.stdout
    assert SECRET not in result.stderr + result.stdout
