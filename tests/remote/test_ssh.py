"""The link over a real sshd: login, bootstrap, and network faults during a log."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from remote.base import Refused
from remote.boxes import Box
from remote.events import BoxGreeted, Link, LinkChanged
from remote.protocol import LOST_AFTER_S
from remote.transports import bootstrap
from remote.transports.bootstrap import build
from remote.transports.paramiko import SshTransport, paramiko_attach_argv
from remote.transports.ssh_config import parse_jump, resolve
from tests.support.agent import agents, connected, eventually
from tests.support.clock import TestClock
from tests.support.known_hosts import box_of, refusal, trust
from tests.support.opening import FALSE, Kind
from tests.support.patience import PATIENCE
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd, make_key, start_ssh_agent

PAUSE_S = 0.005
"""Between two writes of a log."""

# ---------------------------------------------------------------------------------------------------------- login


def test_refused_keys_are_named(tmp_path: Path, sshd: Sshd, hosts: Path) -> None:
    wrong = make_key(tmp_path / "wrong_key")
    locked = make_key(tmp_path / "locked_key", passphrase="secret words")
    damaged = tmp_path / "damaged_key"
    damaged.write_text("not a key\n")
    for key, reason in (
        (wrong, "refused by the box"),
        (locked, f"ssh-add {locked}"),
        (damaged, "not a usable private key"),
        (tmp_path / "missing", "no such file"),
    ):
        message = refusal(box_of(sshd, key=str(key)), hosts)
        assert str(key) in message
        assert reason in message
        assert "boxes.yaml" in message


def test_a_refused_user_is_named(sshd: Sshd, hosts: Path) -> None:
    assert "refused the login of nobody-here" in refusal(box_of(sshd, user="nobody-here"), hosts)


def test_encrypted_keys_work_through_the_ssh_agent(
    tmp_path: Path, own_sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = make_key(tmp_path / "locked_key", passphrase="secret words")
    own_sshd.authorized_keys.write_text(Path(f"{locked}.pub").read_text())
    trust(tmp_path / "hosts", own_sshd, "h200")
    socket = tmp_path / "agent"
    server = start_ssh_agent(socket)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        askpass = tmp_path / "askpass"
        askpass.write_text("#!/bin/sh\necho secret words\n")
        askpass.chmod(0o755)
        environment = {"SSH_AUTH_SOCK": str(socket), "SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(locked)], env=environment, check=True, stdin=subprocess.DEVNULL)
        for key in (str(locked), ""):
            with connected(box_of(own_sshd, key=key), host_keys_file=tmp_path / "hosts") as (_, recorder):
                recorder.wait_link(Link.CONNECTED)
    finally:
        server.terminate()
        server.wait()


# ------------------------------------------------------------------------------------------------------ reachability


def test_unreachable_hosts_are_retried(hosts: Path, own_sshd: Sshd) -> None:
    with connected(box_of(own_sshd, host="no-such-host.invalid"), host_keys_file=hosts) as (_, recorder):
        lost = recorder.wait_link(Link.LOST)
        assert "unknown host 'no-such-host.invalid'" in lost.detail
        assert lost.retry_in_s
    port = own_sshd.port
    own_sshd.stop()
    with connected(box_of(own_sshd), host_keys_file=hosts) as (_, recorder):
        assert f"127.0.0.1:{port}" in recorder.wait_link(Link.LOST).detail
        trust(hosts, own_sshd, "again")
        own_sshd.start()
    with connected(box_of(own_sshd, name="again"), host_keys_file=hosts) as (_, recorder):
        recorder.wait_link(Link.CONNECTED)


def test_a_hanging_login_ends(ssh_box: Box, hosts: Path, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing arrives any more once the shell was started."""
    hanging, original = threading.Event(), bootstrap.start_agent

    def start_in_a_black_hole(*arguments: Any) -> None:
        proxy.black_hole()
        hanging.set()
        original(*arguments)

    monkeypatch.setattr(bootstrap, "start_agent", start_in_a_black_hole)
    clock = TestClock()
    with connected(ssh_box, host_keys_file=hosts, clock=clock) as (client, recorder):
        assert hanging.wait(PATIENCE * 15)
        clock.advance_until(lambda: client.link is Link.LOST)
        assert "took" in recorder.wait_link(Link.LOST).detail
        client.close()
        assert client.link is Link.CLOSED


# -------------------------------------------------------------------------------------------------------- bootstrap


def test_the_agent_is_stored_once_and_privately(sshd: Sshd, hosts: Path) -> None:
    stored = sshd.home / ".grpo/agent" / build().name
    for prepare in (lambda: stored.unlink(missing_ok=True), lambda: None, lambda: stored.write_bytes(b"damaged")):
        prepare()
        before = stored.stat().st_mtime_ns if stored.exists() else 0
        with connected(box_of(sshd), host_keys_file=hosts) as (_, recorder):
            greeted = recorder.wait_for(BoxGreeted)
            assert greeted.agent == build().sha256 == hashlib.sha256(stored.read_bytes()).hexdigest()
    assert stored.stat().st_mtime_ns != before
    assert stored.stat().st_mode & 0o077 == 0
    assert [path.name for path in stored.parent.glob("*.pyz")] == [build().name]


def test_a_shell_greeting_and_a_posix_locale(tmp_path: Path, tmux_socket: str) -> None:
    with Sshd(tmp_path, environment={"LC_ALL": "POSIX", "LANG": "POSIX"}, knows_agent=True) as sshd:
        (sshd.home / ".bashrc").write_text('echo Welcome to the box; echo \'{"type": "hello"}\'; cd /\n')
        trust(tmp_path / "hosts", sshd, "h200")
        box = box_of(sshd, tmux_socket=tmux_socket, root=str(tmp_path / "root"))
        with connected(box, host_keys_file=tmp_path / "hosts") as (client, _):
            subprocess.run(["tmux", "-u", "-L", tmux_socket, "new-session", "-d", "-s", "é …", "sleep 60"], check=True)
            assert client.request("list_sessions").result(60)["sessions"][0]["name"] == "é …"


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
@pytest.mark.parametrize(
    "rest", ["read answer", 'until [ y = "$answer" ]; do read answer || exit; done'], ids=["once", "again"]
)
def test_a_question_of_the_shell_is_shown(own_sshd: Sshd, tmp_path: Path, transport: str, rest: str) -> None:
    (own_sshd.home / ".bashrc").write_text(f"printf 'Load the modules? [y/n] '; answer=; {rest}\n")
    trust(tmp_path / "hosts", own_sshd, "h200")
    clock = TestClock()
    with connected(box_of(own_sshd, transport=transport), host_keys_file=tmp_path / "hosts", clock=clock) as pair:
        client, recorder = pair
        shell = eventually(lambda: getattr(client.transport, "_shell", None))
        eventually(lambda: "Load the" in shell.waits_for(bytearray()))
        clock.advance_until(lambda: client.link is Link.LOST)
        detail = recorder.wait_link(Link.LOST).detail
        assert "its shell printed 'Load the modules? [y/n]'; a startup file such as ~/.bashrc must not ask" in detail


def test_a_box_without_python_or_commands(
    sshd: Sshd, hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "_PYTHONS", ("python2.5", "/no/such/python"))
        assert "Python 3.10" in refusal(box_of(sshd), hosts)
    with Sshd(tmp_path, extra="ForceCommand echo This account is only for git; exit 1\n") as git:
        trust(hosts, git, "git")
        assert "only for git" in refusal(box_of(git, name="git"), hosts)


def test_a_read_only_home_is_no_obstacle(tmp_path: Path) -> None:
    with Sshd(tmp_path, environment={"HOME": "/proc"}) as sshd:
        trust(tmp_path / "hosts", sshd, "h200")
        with connected(box_of(sshd), host_keys_file=tmp_path / "hosts") as (_, recorder):
            assert recorder.wait_for(BoxGreeted).agent == build().sha256


def test_no_process_list_shows_a_secret(tmp_path: Path) -> None:
    secret = "canary-5e1f"
    environment = {"https_proxy": f"http://u:{secret}@proxy", "WANDB_API_KEY": secret}
    with Sshd(tmp_path, environment=environment, knows_agent=True) as sshd:
        trust(tmp_path / "hosts", sshd, "h200")
        with connected(box_of(sshd), host_keys_file=tmp_path / "hosts") as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
            (agent,) = agents(sshd.home)
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    assert secret.encode() not in entry.read_bytes()
                except OSError:
                    continue  # it exited in the meantime
            assert agent


# ---------------------------------------------------------------------------------------------------- a bad network


class Fault(NamedTuple):
    """A fault of a link that stands."""

    strike: Callable[[ChaosProxy, int], None]
    """Given the box's agent."""
    noticed_s: float = 0.0
    """The client notices it after this time."""


FAULTS = (
    Fault(lambda proxy, agent: proxy.reset()),
    Fault(lambda proxy, agent: os.kill(agent, signal.SIGKILL)),
    Fault(lambda proxy, agent: proxy.close_port()),
    Fault(lambda proxy, agent: proxy.black_hole(), LOST_AFTER_S),
    Fault(lambda proxy, agent: proxy.reset()),
)


def follow_through_faults(box: Box, hosts: Path, proxy: ChaosProxy, log: Path) -> None:
    """Follow a growing log while the link fails; the client heals it by itself, and nothing it says is false."""
    with connected(box, host_keys_file=hosts, reconnects=True) as (client, recorder):
        number = client.follow(log.name)
        greeted = recorder.wait_for(BoxGreeted)
        for fault in FAULTS:
            size = len(recorder.logs.get(number, b""))
            eventually(lambda size=size: len(recorder.logs.get(number, b"")) > size + 10_000)  # type: ignore[misc]
            mark, began = recorder.mark(), time.monotonic()
            fault.strike(proxy, int(greeted.host["pid"]))
            assert recorder.wait_link(Link.LOST, after=mark).detail
            assert fault.noticed_s - 1.0 <= time.monotonic() - began < fault.noticed_s + PATIENCE * 3.0
            proxy.pass_through()
            greeted = recorder.wait_for(BoxGreeted, after=mark)
        size = log.stat().st_size
        eventually(lambda: len(recorder.logs[number]) >= size)
        assert bytes(recorder.logs[number])[:size] == log.read_bytes()[:size]
        for event in recorder.events:
            if isinstance(event, LinkChanged):
                assert event.state is not Link.REFUSED
                assert not FALSE.search(event.detail.replace("Connection refused", ""))


def open_in_a_black_hole(box: Box, hosts: Path, proxy: ChaosProxy) -> None:
    """The connection is accepted, and nothing comes."""
    proxy.black_hole()
    with connected(box, host_keys_file=hosts) as (_, recorder):
        assert f"127.0.0.1:{proxy.port}" in recorder.wait_link(Link.LOST, 30).detail


def test_network_faults_lose_and_repeat_no_byte(sshd: Sshd, hosts: Path, root: Path) -> None:
    """Over paramiko and openssh side by side; and a link of each that opens in a black hole."""
    log, ended = root / "log", threading.Event()
    transports: tuple[Kind, ...] = ("paramiko", "openssh")

    def write() -> None:
        with log.open("ab", buffering=0) as file:
            for number in itertools.count(step=20):
                if ended.wait(PAUSE_S):
                    return
                file.write(b"".join(b'{"step": %d, "text": "%s"}\n' % (number + i, b"x" * 90) for i in range(20)))

    def box(transport: Kind, proxy: ChaosProxy) -> Box:
        return box_of(sshd, port=proxy.port, root=str(root), transport=transport)

    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        stack.callback(ended.set)
        proxies = [stack.enter_context(ChaosProxy(sshd.port)) for _ in range(4)]
        done = [
            *(pool.submit(follow_through_faults, box(name, proxy), hosts, proxy, log)
              for name, proxy in zip(transports, proxies[:2], strict=True)),
            *(pool.submit(open_in_a_black_hole, box(name, proxy), hosts, proxy)
              for name, proxy in zip(transports, proxies[2:], strict=True)),
        ]  # fmt: skip
        for each in as_completed(done):
            each.result()
        ended.set()
        writing.result()
    eventually(lambda: not agents(sshd.home), timeout=20)


def test_latency_is_measured(ssh_box: Box, hosts: Path, proxy: ChaosProxy) -> None:
    proxy.delay(0.04)
    with connected(ssh_box, host_keys_file=hosts) as (client, recorder):
        client.request("list_runs").result(60)
        seen = recorder.wait(lambda e: isinstance(e, LinkChanged) and e.latency_ms is not None)
        assert isinstance(seen, LinkChanged)
        assert (seen.latency_ms or 0) >= 80


def test_a_lost_link_does_not_affect_the_run(ssh_box: Box, hosts: Path, proxy: ChaosProxy, root: Path) -> None:
    with connected(ssh_box, host_keys_file=hosts) as (client, recorder):
        launched = client.request("launch", 40, config_text="obedient").result(45)
        run = root / "training_runs" / launched["run"]
        eventually((run / "logs/train_log.jsonl").exists)
        mark = recorder.mark()
        proxy.refuse()
        recorder.wait_link(Link.LOST, after=mark)
        lines = (run / "logs/train_log.jsonl").read_text().count("\n")
        eventually(lambda: (run / "logs/train_log.jsonl").read_text().count("\n") > lines + 3)
        proxy.pass_through()
        client.reconnect_now()
        recorder.wait_reconnected(mark)
        assert client.request("kill", 40, run=launched["run"]).result(45)["left"] == []


# ------------------------------------------------------------------------------------------- jump hosts and attaching


def test_ssh_config_and_jump_hosts(tmp_path: Path, own_sshd: Sshd, sshd: Sshd) -> None:
    own_sshd.authorized_keys.write_text(Path(f"{sshd.user_key}.pub").read_text())
    config = tmp_path / "ssh_config"
    (tmp_path / "included").write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n  ProxyJump middle\n"
        f"Host middle\n  HostName 127.0.0.1\n  Port {own_sshd.port}\nHost *\n  IdentityFile {sshd.user_key}\n"
    )
    config.write_text(f"Include {tmp_path}/included\n")
    hosts = tmp_path / "hosts"
    trust(hosts, own_sshd, f"jump-127.0.0.1-{own_sshd.port}")
    trust(hosts, sshd, "h200")

    def factory(box: Box, ask: Any) -> SshTransport:
        return SshTransport(box, ask, host_keys_file=hosts, ssh_config=str(config))

    with connected(Box("h200", host="gpu"), transport_factory=factory) as (client, recorder):
        recorder.wait_link(Link.CONNECTED)
        assert client.request("list_runs").result(60)
    assert "Accepted publickey" in own_sshd.log.read_text()
    target = resolve("gpu", user="else", port=5, key="~/k", config=str(config))
    assert (target.user, target.port, target.identity_files) == ("else", 5, [Path("~/k").expanduser()])


def test_unusable_ssh_configurations(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host gpu\n  ProxyCommand nc %h %p\n")
    with pytest.raises(Refused, match="ProxyJump"):
        resolve("gpu", config=str(config))
    config.write_text("Nonsense yes\n")
    with pytest.raises(Refused, match="configuration"):
        resolve("gpu", config=str(config))
    with pytest.raises(Refused):
        resolve("-oProxyCommand=touch /tmp/x")
    assert parse_jump("ssh://me@[::1]:22") == ("me", "::1", 22)
    assert parse_jump("host") == ("", "host", 0)


def test_attach_uses_the_users_ssh(tmp_path: Path, sshd: Sshd, hosts: Path, tmux_socket: str) -> None:
    """The command runs in a real terminal (another tmux) and shows this session, not one with a similar name.

    The terminal is one that the box does not know.
    """
    for name, words in (("run_1", "this is the one"), ("run_12", "this is another")):
        script = f"echo {words}; sleep 60"
        subprocess.run(["tmux", "-L", tmux_socket, "new-session", "-d", "-s", name, script], check=True)
    box = box_of(sshd, tmux_socket=tmux_socket)
    known = tmp_path / "a folder" / "known_hosts"
    known.parent.mkdir()
    known.write_text(hosts.read_text())
    for where, argv in (
        ("ssh", paramiko_attach_argv(box, "run_1", host_keys_file=known)),
        ("local", paramiko_attach_argv(Box("local", kind="local", tmux_socket=tmux_socket), "run_1")),
    ):
        outer, terminal = f"{tmux_socket}-{where}", ["env", "TERM=xterm-nobody-knows"]
        try:
            subprocess.run(
                ["tmux", "-L", outer, "new-session", "-d", "-x", "100", "-y", "30", *terminal, *argv], check=True
            )

            def screen(outer: str = outer) -> str:
                done = subprocess.run(["tmux", "-L", outer, "capture-pane", "-p"], capture_output=True, text=True)
                return done.stdout

            eventually(lambda: "this is the one" in screen())
            assert "this is another" not in screen()
        finally:
            subprocess.run(["tmux", "-L", outer, "kill-server"], capture_output=True)
            (Path(os.environ.get("TMUX_TMPDIR", "/tmp")) / f"tmux-{os.getuid()}" / outer).unlink(missing_ok=True)
