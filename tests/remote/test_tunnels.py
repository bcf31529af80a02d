"""Tunnels over every transport: bytes, ends, refusals, lost links, and what is left behind."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from grpo_train.run_dir.errors import UserError
from remote.boxes import Box, read_forward
from remote.client import BoxClient
from remote.events import ClientEvent, HostKeyAsked, Link, LinkChanged
from remote.tunnels import Tunnel
from tests.support.agent import eventually
from tests.support.ports import own_ports
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd, box_over


class Service:
    """A service of the box: answers ``N\\n`` with N bytes and their SHA-256, then closes; counts open connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.open += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                if line := lines.readline():
                    data = random.Random(int(line)).randbytes(int(line))
                    connection.sendall(data + hashlib.sha256(data).digest())
        except OSError:
            pass
        finally:
            self.open -= 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def ask(tunnel: Tunnel, count: int) -> bool:
    """Whether a request through a tunnel is answered; one that ended early got an error, or nothing at all."""
    try:
        with socket.create_connection(("127.0.0.1", tunnel.local_port), 20) as connection:
            connection.sendall(f"{count}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answer:
                data = answer.read()
    except OSError:
        return False
    if data:
        assert len(data) == count + 32, "half an answer looks whole"
        assert hashlib.sha256(data[:count]).digest() == data[count:]
    return bool(data)


def children() -> set[int]:
    """Processes that this one started and that have not ended."""
    return {child.pid for child in psutil.Process().children()}


def listeners(*ports: int) -> set[tuple[int, str]]:
    """(port, address) of every socket of this machine, which is laptop and box, that listens on one of these ports."""
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            address, port = local.split(":")
            if state == "0A" and int(port, 16) in ports:
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found.add((int(port, 16), socket.inet_ntop(family, b"".join(words))))
    return found


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@contextmanager
def up(box: Box) -> Iterator[BoxClient]:
    def accept(event: ClientEvent) -> None:
        if isinstance(event, HostKeyAsked):
            client.answer_host_key(True)
        if isinstance(event, LinkChanged) and event.state is Link.LOST and event.retry_in_s:
            client.reconnect_now()

    client = BoxClient(box, accept)
    client.start()
    try:
        eventually(lambda: client.link is Link.CONNECTED)
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module", params=["local", "openssh", "paramiko"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sshd: Sshd) -> Iterator[BoxClient]:
    with up(box_over(request.param, tmp_path_factory.mktemp("root"), sshd, sshd.port)) as client:
        yield client


def test_many_at_once(client: BoxClient, service: Service) -> None:
    before = children()
    with Tunnel(client, "127.0.0.1", service.port, local_port=16_007) as tunnel:
        assert tunnel.local_port in own_ports()
        assert ask(tunnel, 3_000_000)
        assert listeners(tunnel.local_port) == {(tunnel.local_port, "127.0.0.1")}
        found: list[bool] = []
        threads = [threading.Thread(target=lambda: found.append(ask(tunnel, 100_000))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 6
        eventually(lambda: tunnel.connections == 0)
    eventually(lambda: children() == before)
    assert tunnel.local_port not in own_ports()


def test_an_address_that_refuses_ends_the_connection(client: BoxClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Tunnel(client, "127.0.0.1", port, local_port=16_007) as tunnel:
        assert not ask(tunnel, 1)
        eventually(lambda: tunnel.connections == 0)


def test_closing_ends_connections(client: BoxClient, service: Service) -> None:
    """By a reset: half an answer does not look whole."""
    with Tunnel(client, "127.0.0.1", service.port, local_port=16_007, holds=True) as tunnel:
        eventually(lambda: service.open == 1)  # the one that is held
        with socket.create_connection(("127.0.0.1", tunnel.local_port), 5) as idle:
            eventually(lambda: (service.open, tunnel.connections) == (2, 1))
            tunnel.close()
            with pytest.raises(ConnectionResetError):
                idle.recv(1)
    eventually(lambda: service.open == 0)


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
def test_the_port_stays_over_a_lost_link(transport: str, root: Path, sshd: Sshd, service: Service) -> None:
    with (
        ChaosProxy(sshd.port) as proxy,
        up(box_over(transport, root, sshd, proxy.port)) as client,
        Tunnel(client, "127.0.0.1", service.port, local_port=16_007, holds=True) as tunnel,
    ):
        eventually(lambda: service.open == 1)
        for _ in range(2):
            assert ask(tunnel, 10_000)
            proxy.reset()
            eventually(lambda: client.link is not Link.CONNECTED)
            eventually(lambda: client.link is Link.CONNECTED, 60)
            eventually(lambda: ask(tunnel, 10_000), 60)
        eventually(lambda: service.open == 1)
    eventually(lambda: service.open == 0)


def test_a_taken_port(client: BoxClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of this machine is taken") as error:
            Tunnel(client, "127.0.0.1", 1, local_port=port, exact=True)
        assert error.value.code == "port_taken"
        with Tunnel(client, "127.0.0.1", 1, local_port=port) as tunnel:
            assert port < tunnel.local_port < port + 50
            assert tunnel.local == f"127.0.0.1:{tunnel.local_port}"


@pytest.mark.parametrize("text", ["", "1:2", "0:h:1", "70000:h:1", "1:h:70000", "1:-o:2", "a:h:1", "1:h h:2", "1::2"])
def test_forwards_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be LOCAL:HOST:PORT"):
        read_forward(text)


def test_forwards() -> None:
    assert read_forward("8888:127.0.0.1:9999") == (8888, "127.0.0.1", 9999)
    assert read_forward("1:[fe80::1]:2") == (1, "fe80::1", 2)
    assert read_forward("8080:node-1.cluster:80") == (8080, "node-1.cluster", 80)
