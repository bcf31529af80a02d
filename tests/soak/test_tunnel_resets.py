"""200 resets while 100 MB pass through a tunnel: each request whole or failed, nothing left. Part of ``make soak``."""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

import pytest

from remote.tunnels import Tunnel
from tests.remote.conftest import root, sshd
from tests.remote.test_tunnels import Service, ask, children, service, up
from tests.support.agent import eventually
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd, box_over

__all__ = ["root", "service", "sshd"]
RESETS, BYTES, WORKERS = 200, 100_000_000, 4


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
def test_every_request_is_whole_or_failed(transport: str, root: Path, sshd: Sshd, service: Service) -> None:
    before, threads_before = children(), threading.active_count()
    passed, failed, resets = [0], [0], [0]
    problems: list[BaseException] = []
    done = threading.Event()
    with (
        ChaosProxy(sshd.port) as proxy,
        up(box_over(transport, root, sshd, proxy.port)) as client,
        Tunnel(client, "127.0.0.1", service.port, local_port=16_007, holds=True) as tunnel,
    ):

        def work(seed: int) -> None:
            draw = random.Random(seed)
            try:
                while not done.is_set():
                    count = draw.randint(1_000, 2_000_000)
                    if ask(tunnel, count):
                        passed[0] += count
                    else:
                        failed[0] += 1
                        done.wait(0.05)
            except BaseException as error:
                problems.append(error)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(WORKERS)]
        for worker in workers:
            worker.start()
        draw = random.Random(7)
        while not problems and (resets[0] < RESETS or passed[0] < BYTES):
            client.reconnect_now()
            threading.Event().wait(draw.uniform(0.05, 1.5))
            proxy.reset()
            resets[0] += 1
        done.set()
        for worker in workers:
            worker.join(60)
        assert not problems, problems
        client.reconnect_now()
        eventually(lambda: ask(tunnel, 1_000), 60)
        eventually(lambda: tunnel.connections == 0)
        port = tunnel.local_port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    eventually(lambda: children() == before and service.open == 0)
    eventually(lambda: threading.active_count() <= threads_before + 1)
    print(f"\n{transport}: {resets[0]} resets, {passed[0] / 1e6:.0f} MB in whole answers, {failed[0]} failed requests")
