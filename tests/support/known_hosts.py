"""A box that is an sshd, a known_hosts file with its key, and the message of a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remote.boxes import Box
from remote.events import HostKeyAsked, Link
from tests.support.agent import connected
from tests.support.sshd import Sshd


def trust(file: Path, sshd: Sshd, *names: str) -> None:
    kind, blob = Path(f"{sshd.host_key}.pub").read_text().split()[:2]
    with file.open("a") as known:
        known.writelines(f"{name} {kind} {blob}\n" for name in names)


def box_of(sshd: Sshd, **fields: Any) -> Box:
    values = {"host": "127.0.0.1", "port": sshd.port, "user": sshd.user, "key": str(sshd.user_key)}
    values |= {"transport": "paramiko", **fields}
    return Box(values.pop("name", "h200"), **values)


def refusal(box: Box, hosts: Path, answer: bool | None = None) -> str:
    """Connect, expect a refusal, and return its message."""
    with connected(box, host_keys_file=hosts, reconnects=True) as (client, recorder):
        if answer is not None:
            recorder.wait_for(HostKeyAsked)
            client.answer_host_key(answer)
        return recorder.wait_link(Link.REFUSED).detail
