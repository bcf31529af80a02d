"""Opening a link over a real sshd: what is a refusal, when a box is asked again, and bounds on what it sends."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
import pytest

from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.events import HostKeyAsked, Link, LinkChanged
from remote.transports.ssh_config import resolve
from remote.transports.transport import NetworkDetector, Timing
from tests.support.agent import connected, eventually
from tests.support.clock import LeapingClock, TestClock
from tests.support.network import add_link_local, needs_root, own_network
from tests.support.proxy import ChaosProxy, Fault
from tests.support.sshd import Sshd, make_key


@contextmanager
def server(folder: Path, extra: str = "", *, knows_agent: bool = True) -> Iterator[tuple[Sshd, Box, Path]]:
    """An sshd, its box and a known_hosts file with its key."""
    with Sshd(folder, extra=extra, knows_agent=knows_agent) as sshd:
        hosts = folder / "hosts"
        kind, blob = Path(f"{sshd.host_key}.pub").read_text().split()[:2]
        hosts.write_text(f"h200 {kind} {blob}\n")
        box = Box("h200", "127.0.0.1", sshd.user, sshd.port, str(sshd.user_key), transport="paramiko")
        yield sshd, box, hosts


def connections(sshd: Sshd) -> int:
    """Connections on which something was said: sshd's start makes one without a word."""
    log = sshd.log.read_text()
    return log.count("Connection from") - log.count("kex_exchange_identification: Connection closed")


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("extra", "theirs", "ours"),
    [
        ("Ciphers chacha20-poly1305@openssh.com\n", "chacha20-poly1305@openssh.com", "aes256-ctr"),
        (
            "KexAlgorithms sntrup761x25519-sha512@openssh.com\n",
            "sntrup761x25519-sha512",
            "curve25519-sha256@libssh.org",
        ),
    ],
)
def test_no_common_algorithm_is_refused_twice_seen(tmp_path: Path, extra: str, theirs: str, ours: str) -> None:
    with (
        server(tmp_path, extra) as (sshd, box, hosts),
        connected(box, host_keys_file=hosts, reconnects=True) as (_, recorder),
    ):
        refused = recorder.wait_link(Link.REFUSED)
        for words in ("no SSH algorithm in common", theirs, ours, "the box offers", "this program offers"):
            assert words in refused.detail
        assert refused.retry_in_s == 300.0
        eventually(lambda: connections(sshd) == 2)


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_an_offer_of_nothing_is_damaged_however_often(tmp_path: Path, transport: str) -> None:
    """The length of a list of algorithms becomes 0, three times alike."""
    with server(tmp_path) as (sshd, box, hosts), ChaosProxy(sshd.port) as proxy:
        probe = dataclasses.replace(box, port=proxy.port, transport=transport)
        with connected(probe, host_keys_file=hosts) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
        assert proxy.last
        offer = b"none,zlib@openssh.com"
        length = bytes(proxy.last.heads[True]).rindex(offer) - 1
        proxy.plan(*[Fault("flip", length, back=True, mask=len(offer)) for _ in range(3)])
        with connected(probe, host_keys_file=hosts, reconnects=True) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
            states = [event.state for event in recorder.events if isinstance(event, LinkChanged)]
            assert Link.REFUSED not in states
        assert len(proxy.fired) == 3


def test_one_damaged_offer_is_not_a_refusal(tmp_path: Path) -> None:
    with (
        server(tmp_path, "Ciphers aes256-gcm@openssh.com\n") as (sshd, box, hosts),
        ChaosProxy(sshd.port) as proxy,
    ):
        probe = dataclasses.replace(box, port=proxy.port)
        with connected(probe, host_keys_file=hosts) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
        assert proxy.last
        offset = bytes(proxy.last.heads[True]).index(b"aes256-gcm@")
        proxy.plan(*[Fault("flip", offset + i, back=True) for i in range(3)])
        with connected(probe, host_keys_file=hosts, reconnects=True) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
            states = [event.state for event in recorder.events if isinstance(event, LinkChanged)]
            assert Link.REFUSED not in states
        assert len(proxy.fired) == 3


def test_a_disconnect_after_too_many_keys_is_a_refusal(tmp_path: Path) -> None:
    with server(tmp_path, "MaxAuthTries 1\n") as (sshd, box, hosts):
        box = dataclasses.replace(box, key=str(make_key(tmp_path / "wrong_key")))
        with connected(box, host_keys_file=hosts, reconnects=True) as (_, recorder):
            refused = recorder.wait_link(Link.REFUSED)
            assert "wrong_key" in refused.detail
            assert "Too many authentication failures" in refused.detail
            eventually(lambda: connections(sshd) == 2)


def test_a_box_that_recovers_is_connected_without_a_person(tmp_path: Path) -> None:
    with server(tmp_path) as (sshd, box, hosts):
        box = dataclasses.replace(box, python="~/python")
        clock = TestClock()
        with connected(box, host_keys_file=hosts, clock=clock) as (client, recorder):
            refused = recorder.wait_link(Link.REFUSED)
            assert "'~/python' ('python' of 'h200' in boxes.yaml) does not run" in refused.detail
            assert refused.retry_in_s == 300.0
            (sshd.home / "python").symlink_to(sys.executable)
            clock.advance(299.0)
            assert client.link is Link.REFUSED
            clock.advance(1.0)
            recorder.wait_link(Link.CONNECTED)


def test_a_full_disk_leaves_no_part_of_the_upload(tmp_path: Path) -> None:
    with server(tmp_path) as (sshd, box, hosts):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(sshd.home)]).returncode:
            pytest.skip("cannot mount a file system")
        try:
            with connected(box, host_keys_file=hosts) as (_, recorder):
                recorder.wait_link(Link.CONNECTED)  # from memory
                assert list((sshd.home / ".grpo/agent").iterdir()) == []
            subprocess.run(["mount", "-o", "remount,size=16m", str(sshd.home)], check=True)
            with connected(box, host_keys_file=hosts) as (_, recorder):
                recorder.wait_link(Link.CONNECTED)
                assert len(list((sshd.home / ".grpo/agent").glob("*.pyz"))) == 1
        finally:
            subprocess.run(["umount", "-l", str(sshd.home)], check=True)


def test_only_a_person_retries_a_host_key(tmp_path: Path) -> None:
    with server(tmp_path) as (sshd, box, hosts):
        known = hosts.read_text()
        hosts.write_text("")
        clock = TestClock()
        with connected(box, host_keys_file=hosts, clock=clock) as (client, recorder):
            recorder.wait_for(HostKeyAsked)
            client.answer_host_key(False)
            assert recorder.wait_link(Link.REFUSED).retry_in_s is None
            clock.advance(2 * 300.0)
            eventually(lambda: connections(sshd) == 1)
        hosts.write_text(known)
        with connected(box, host_keys_file=hosts, clock=clock) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
            sshd.new_host_key()
            clock.advance((recorder.wait_link(Link.LOST).retry_in_s or 0.0) + 0.1)  # what is shown is rounded
            assert recorder.wait_link(Link.REFUSED).retry_in_s is None
            clock.advance(2 * 300.0)
            eventually(lambda: connections(sshd) == 3)


def test_a_refusing_box_is_asked_after_a_suspend(tmp_path: Path) -> None:
    clock = TestClock()
    with server(tmp_path) as (sshd, box, hosts):
        box = dataclasses.replace(box, python="~/python")
        with connected(box, host_keys_file=hosts, clock=clock) as (_, recorder):
            recorder.wait_link(Link.REFUSED)
            (sshd.home / "python").symlink_to(sys.executable)
            clock.suspend(3600.0)
            clock.advance(1.0)
            recorder.wait_link(Link.CONNECTED)


CHANGE_OF_NETWORK = """
    import subprocess
    from remote.boxes import Box
    from remote.client import BoxClient
    from remote.events import Link
    from remote.base import Refused
    from tests.support.agent import Recorder
    from tests.support.clock import TestClock

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    class Refusing:
        address = "10.9.0.77"
        def open(self, greeting): raise Refused("no")
        def close(self): pass

    made = []
    def factory(box, ask):
        made.append(box)
        return Refusing()

    ip("link", "set", "lo", "up")
    ip("address", "add", "10.9.0.1/24", "dev", "lo")
    recorder, clock = Recorder(), TestClock()
    client = BoxClient(Box("h200", host="10.9.0.77"), recorder, transport_factory=factory, clock=clock)
    client.start()
    recorder.wait_link(Link.REFUSED)
    ip("address", "add", "10.8.0.1/24", "dev", "lo")  # no other address towards the box
    clock.advance(10)
    assert len(made) == 1, "asked again without a change of network"
    ip("address", "del", "10.9.0.1/24", "dev", "lo")
    ip("address", "add", "10.9.0.2/24", "dev", "lo")
    clock.advance(4)
    assert len(made) == 2
    client.close()
    print("asked again")
"""


def test_a_refusing_box_is_asked_after_a_change_of_network() -> None:
    words = ["unshare", "--net", "--map-root-user", sys.executable, "-c", textwrap.dedent(CHANGE_OF_NETWORK)]
    if subprocess.run(["unshare", "--net", "--map-root-user", "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "asked again\n", done.stderr


@needs_root
def test_a_change_of_network_towards_a_zone() -> None:
    with own_network():
        address = add_link_local("lab0")
        clock = TestClock()
        network = NetworkDetector(Timing().network_every, clock)
        network.watch(address)
        clock.advance(Timing().network_every)
        assert not network.happened()
        subprocess.run(["ip", "link", "set", "lab0", "down"], check=True)
        clock.advance(Timing().network_every)
        assert network.happened()


# ------------------------------------------------------------------------------------------------------ boxes


def test_max_sessions_1(tmp_path: Path) -> None:
    with server(tmp_path, "MaxSessions 1\n", knows_agent=False) as (_, box, hosts):
        for _ in range(2):  # the first uploads the agent, in the only session
            with connected(box, host_keys_file=hosts) as (_, recorder):
                recorder.wait_link(Link.CONNECTED)
                states = [event.state for event in recorder.events if isinstance(event, LinkChanged)]
                assert Link.LOST not in states, recorder.events


def test_a_shell_that_leaves_a_process_behind(tmp_path: Path) -> None:
    """The process holds the output open, so only the end marker says that an answer is whole."""
    with server(tmp_path, "MaxSessions 1\n") as (sshd, box, hosts):
        (sshd.home / ".bashrc").write_text("sleep 20 &\n")
        with connected(box, host_keys_file=hosts) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
            assert not [e for e in recorder.events if isinstance(e, LinkChanged) and e.state is Link.LOST]


def test_long_greetings_are_read_up_to_1_mib(tmp_path: Path) -> None:
    with server(tmp_path) as (sshd, box, hosts):
        greeting = sshd.home / ".bashrc"
        greeting.write_text("head -c 400000 /dev/zero | tr '\\0' x >&2; head -c 400000 /dev/zero | tr '\\0' y; echo\n")
        with connected(box, host_keys_file=hosts) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
        for flood in ("yes", "yes >&2"):
            greeting.write_text(f"{flood}\n")
            with connected(box, host_keys_file=hosts) as (_, recorder):
                assert "floods the link: more than 1 MiB" in recorder.wait_link(Link.LOST).detail


def test_a_flood_before_the_key_exchange_ends_the_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def flood() -> None:
        while True:
            try:
                sock, _ = listener.accept()
                while True:
                    sock.sendall(b"x" * 65_536)
            except OSError:
                if listener.fileno() < 0:
                    return

    threading.Thread(target=flood, daemon=True).start()
    with connected(Box("h200", "127.0.0.1", "x", listener.getsockname()[1], transport="paramiko")) as (_, recorder):
        assert "more than 64 KiB" in recorder.wait_link(Link.LOST).detail
    listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
    listener.close()


class Flooding(paramiko.ServerInterface):
    """Runs no command; sends bytes beyond the window until the connection ends."""

    def __init__(self) -> None:
        self.sent = 0

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        threading.Thread(target=self._flood, args=(channel,), daemon=True).start()
        return True

    def _flood(self, channel: Any) -> None:
        channel.out_window_size = 2**40
        try:
            while self.sent < 64 * 2**20:
                self.sent += channel.send(b"x" * 32_768)
        except (OSError, EOFError):
            pass


def test_a_server_that_ignores_the_window_is_left(tmp_path: Path) -> None:
    with server(tmp_path) as (sshd, box, hosts):
        listener = socket.create_server(("127.0.0.1", 0))
        interface = Flooding()

        def serve() -> None:
            sock, _ = listener.accept()
            transport = paramiko.Transport(sock)
            transport.add_server_key(paramiko.PKey.from_path(sshd.host_key))
            with suppress(Exception):  # the client leaves
                transport.start_server(server=interface)

        threading.Thread(target=serve, daemon=True).start()
        box = dataclasses.replace(box, port=listener.getsockname()[1])
        with connected(box, host_keys_file=hosts) as (_, recorder):
            assert "MiB" in recorder.wait_link(Link.LOST).detail
        listener.close()
        assert interface.sent < 64 * 2**20


# ------------------------------------------------------------------------------------------------------ ssh -G


def test_match_exec_has_a_limit_and_no_fall_back(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text('Match exec "sleep 4321"\n  HostName 127.0.0.1\n')
    with pytest.raises(Refused, match="Match exec"):
        resolve("gpu", config=str(config), clock=LeapingClock())
    eventually(lambda: not _running("sleep 4321"))
    with pytest.raises(Unreachable):
        resolve("gpu", config=str(config), closing=lambda: _running("sleep 4321"))
    eventually(lambda: not _running("sleep 4321"))


def _running(words: str) -> bool:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().replace(b"\0", b" ").strip())
        except (OSError, EOFError):
            continue
    return words.encode() in found
