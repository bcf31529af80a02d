"""The system's ssh as a transport: what it leaves behind, whom it trusts, and what it calls a refusal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from remote.base import BoxesError, Refused
from remote.boxes import Box, at_address, parse_boxes
from remote.client import BoxClient
from remote.events import BoxGreeted, HostKeyAsked, Link, LinkChanged
from remote.transports.choice import attach_argv, choose
from remote.transports.openssh_setup import OpenSshClient, live
from tests.support.agent import Recorder, agents, connected, eventually
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.proxy import ChaosProxy
from tests.support.ssh_lab import NAME, Lab, box_of, folders, options, processes


def test_nothing_is_left_behind(place: Lab) -> None:
    server = place.server()
    with connected(box_of(place), **options(place, place.config(server))) as (client, recorder):
        assert "OpenSSH" in recorder.wait_link(Link.CONNECTED, 30).detail
        assert client.request("list_runs").result() == {"runs": []}
        (folder,) = folders(place)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "questions").stat().st_mode & 0o777 == 0o600
        assert processes(place)
    assert not folders(place)
    assert not processes(place)
    eventually(lambda: not agents(server.home), what="the agent exits")


def test_a_killed_program_leaves_nothing_running(place: Lab) -> None:
    server = place.server()
    settings = options(place, place.config(server))
    script = (
        "import sys, time; from remote.boxes import Box; from remote.client import BoxClient\n"
        "from remote.events import Link, LinkChanged\n"
        "box = Box('gpu-box', host=sys.argv[1], transport='openssh')\n"
        "def said(e): isinstance(e, LinkChanged) and e.state is Link.CONNECTED and print('up', flush=True)\n"
        "BoxClient(box, said, ssh_config=sys.argv[2], host_keys_file=sys.argv[3]).start(); time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", script, NAME, settings["ssh_config"], str(settings["host_keys_file"])]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"up\n"
    program.kill()
    program.wait()
    program.stdout.close()
    eventually(lambda: not processes(place), what="ssh exits")
    eventually(lambda: not agents(server.home), what="the agent exits")
    with connected(box_of(place), **settings) as (_, recorder):  # removes the directory
        recorder.wait_link(Link.CONNECTED, 30)
        assert len(folders(place)) == 1


def test_a_new_key_is_stored_under_the_box(place: Lab) -> None:
    server = place.server(known=False)
    settings = options(place, place.config(server))
    for first in (True, False):
        with connected(box_of(place), **settings) as (client, recorder):
            if first:
                asked = recorder.wait_for(HostKeyAsked, 30)
                assert asked.fingerprint == server.fingerprint()
                client.answer_host_key(True)
            recorder.wait_link(Link.CONNECTED, 30)
            assert first or not [event for event in recorder.events if isinstance(event, HostKeyAsked)]
    assert settings["host_keys_file"].read_text() == f"gpu-box {place.public(server.host_key)}\n"
    assert not place.known.exists()


@pytest.mark.parametrize(
    ("line", "cipher"), [("", "aes128-gcm@openssh.com"), ("Ciphers aes256-ctr", "aes256-ctr")], ids=["ours", "theirs"]
)
def test_a_fast_cipher_unless_the_user_names_one(place: Lab, line: str, cipher: str) -> None:
    settings = options(place, place.config(place.server(), line))
    with connected(box_of(place), **settings) as (_, recorder):
        assert recorder.wait_for(BoxGreeted, 30).algorithms["cipher"] == cipher


def test_a_known_key_is_not_asked_for(place: Lab) -> None:
    server = place.server()
    settings = options(place, place.config(server))
    with connected(box_of(place), **settings) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
        assert not [event for event in recorder.events if isinstance(event, HostKeyAsked)]
    assert not settings["host_keys_file"].exists()


def _refusal(box: Box, settings: dict[str, Any]) -> str:
    with connected(box, **settings) as (_, recorder):
        refused = recorder.wait_link(Link.REFUSED, 30)
        assert refused.retry_in_s is None
        assert not [event for event in recorder.events if isinstance(event, HostKeyAsked)]
        return refused.detail


def test_another_key_names_file_and_line(place: Lab) -> None:
    server = place.server()
    server.new_host_key()
    place.known.write_text("# a comment\n" + place.known.read_text())
    message = _refusal(box_of(place), options(place, place.config(server)))
    assert f"{place.known} line 2" in message
    assert server.fingerprint() in message
    assert "CHANGED" in message


def test_our_key_comes_before_the_users(place: Lab) -> None:
    """The user's file has the key that the box presents; ours has another one for this box."""
    server = place.server()
    settings = options(place, place.config(server))
    other = place.key("other")
    settings["host_keys_file"].write_text(f"x {place.public(other)}\ngpu-box {place.public(other)}\n")
    message = _refusal(box_of(place), settings)
    assert f"{settings['host_keys_file']} line 2" in message


LAX = "Host *\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nUpdateHostKeys yes\nRemoteCommand false\n"


@pytest.mark.parametrize("spelling", ["{user}@{host}", "ssh://{user}@{host}:{port}/", "GPU", "::1"])
def test_host_keys_are_compared_in_every_spelling(place: Lab, spelling: str) -> None:
    """Whatever the user's configuration says: another key is refused, an unknown one asked about."""
    port = free_port()
    server = place.server(f"ListenAddress [::1]:{port}\n", known=False)
    port = port if spelling == "::1" else server.port
    names = "Host GPU\nHostName 127.0.0.1\n"
    config = f"{names}Host *\nUser {server.user}\nPort {port}\nIdentityFile {server.user_key}\n{LAX}"
    settings = options(place, config)
    spelled = spelling.format(user=server.user, host="127.0.0.1", port=port)
    with connected(at_address(box_of(place), spelled), **settings) as (client, recorder):
        recorder.wait_for(HostKeyAsked, 30)
        client.answer_host_key(False)
        recorder.wait_link(Link.REFUSED, 30)
    settings["host_keys_file"].write_text(f"gpu-box {place.public(place.key('other'))}\n")
    message = _refusal(Box("gpu-box", host=spelled, transport="openssh"), settings)
    assert f"delete line 1 of {settings['host_keys_file']}" in message


@pytest.mark.parametrize("jump", ["GPU-Jump", "{user}@127.0.0.1:{port}", "ssh://{user}@127.0.0.1:{port}"])
def test_host_keys_of_jump_hosts_are_compared_in_every_spelling(place: Lab, jump: str) -> None:
    server, hop = place.server(), place.server(known=False)
    place.known.write_text(f"{place.address(server)} {place.public(server.host_key)}\n")
    spelled = jump.format(user=hop.user, port=hop.port)
    lines = f"Host GPU-Jump\nHostName 127.0.0.1\nPort {hop.port}\nUser {hop.user}\n"
    config = place.config(server, f"ProxyJump {spelled}") + f"{lines}Host *\nIdentityFile {hop.user_key}\n{LAX}"
    settings = options(place, config)
    settings["host_keys_file"].write_text(f"jump-127.0.0.1-{hop.port} {place.public(place.key('other'))}\n")
    assert "host key" in _refusal(box_of(place), settings)


def test_a_master_that_compared_no_host_key_is_not_used(place: Lab) -> None:
    server = place.server(known=False)
    master = place.folder / "master.sock"
    config = place.config(server, f"ControlPath {master}", known=False) + LAX
    settings = options(place, config)
    place.know(place.address(server), server)
    strict = place.folder / "strict"
    strict.write_text(place.config(server, f"ControlPath {master}"))
    place.start_master(strict)
    with connected(box_of(place), **settings) as (_, recorder):
        recorder.wait_for(HostKeyAsked, 30)


def test_a_key_of_another_type(place: Lab) -> None:
    server = place.server()
    settings = options(place, place.config(server))
    settings["host_keys_file"].write_text(f"gpu-box {place.public(place.key('other', kind='rsa'))}\n")
    assert "different type" in _refusal(box_of(place), settings)


def test_a_key_that_ssh_was_not_given_is_no_refusal(place: Lab) -> None:
    """Another program removed the file that was prepared for ssh."""
    server = place.server()
    settings = options(place, place.config(server, f'Match exec "rm -f {place.folder}/grpo-ssh-*/target"'))
    settings["host_keys_file"].write_text(f"gpu-box {place.public(server.host_key)}\n")
    with connected(box_of(place), **settings) as (_, recorder):
        lost = recorder.wait_link(Link.LOST, 30)
        assert lost.detail.startswith("ssh did not find the stored key of 'gpu-box' under ")
        assert "/target: No such file or directory); connecting again" in lost.detail


@pytest.mark.parametrize("file", ["ours", "theirs"])
def test_a_revoked_key_is_a_hard_stop(place: Lab, file: str) -> None:
    server = place.server()
    settings = options(place, place.config(server))
    ours = settings["host_keys_file"]
    ours.write_text(f"gpu-box {place.public(server.host_key)}\n")
    target, name = (ours, "gpu-box") if file == "ours" else (place.known, place.address(server))
    with target.open("a") as known:
        known.write(f"@revoked {name} {place.public(server.host_key)}\n")
    message = _refusal(box_of(place), settings)
    assert "REVOKED" in message
    assert f"{target} line 2" in message


def test_jump_hosts_have_our_names(place: Lab) -> None:
    jump, server = place.server(known=False), place.server(known=False)
    config = place.config(jump, name="jump") + place.config(server, "ProxyJump jump")
    settings = options(place, config)
    with connected(box_of(place), **settings) as (client, recorder):
        for count in (1, 2):
            recorder.wait(lambda _, count=count: _keys_asked(recorder) >= count, 30)
            client.answer_host_key(True)
        recorder.wait_link(Link.CONNECTED, 30)
    asked = [event.host for event in recorder.events if isinstance(event, HostKeyAsked)]
    assert asked == [f"a jump host of gpu-box ([127.0.0.1]:{jump.port})", f"gpu-box ([127.0.0.1]:{server.port})"]
    names = {line.split()[0] for line in settings["host_keys_file"].read_text().splitlines()}
    assert names == {"gpu-box", f"jump-127.0.0.1-{jump.port}"}
    with connected(box_of(place), **settings) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
        assert _keys_asked(recorder) == 0
    assert not place.known.exists()


def _keys_asked(recorder: Recorder) -> int:
    return sum(isinstance(event, HostKeyAsked) for event in recorder.events)


# -------------------------------------------------------------------------------------------------------- faults


def test_early_ends_are_unreachable(place: Lab) -> None:
    """A server that closes, one that does not answer, and one that refuses the login."""
    server = place.server()
    server.stop()
    with connected(box_of(place), **options(place, place.config(server))) as (client, recorder):
        lost = recorder.wait_link(Link.LOST, 30)
        assert "Connection refused" in lost.detail
        assert "connect to host" not in lost.detail, "the address is said once"
        server.start()
        client.reconnect_now()
        recorder.wait_link(Link.CONNECTED, 30)


def test_a_refused_login_lists_the_keys(place: Lab) -> None:
    server = place.server()
    stranger = place.key("stranger")
    config = place.config(server, f"IdentityFile {stranger}", "IdentitiesOnly yes", key=False)
    with connected(box_of(place), **options(place, config)) as (_, recorder):
        refused = recorder.wait_link(Link.REFUSED, 30)
        assert str(stranger) in refused.detail
        assert "authorized_keys" in refused.detail
        assert refused.retry_in_s  # the box may change its mind


def test_a_dead_link_heals(place: Lab) -> None:
    server = place.server()
    with ChaosProxy(server.port) as proxy:
        place.know(f"[127.0.0.1]:{proxy.port}", server)
        config = place.config(server, f"Port {proxy.port}")
        with connected(box_of(place), **options(place, config), reconnects=True) as (client, recorder):
            recorder.wait_link(Link.CONNECTED, 30)
            for _ in range(3):
                mark = recorder.mark()
                proxy.reset()
                recorder.wait_reconnected(mark)
            assert client.request("list_runs").result() == {"runs": []}
            assert all(e.state is not Link.REFUSED for e in recorder.events if isinstance(e, LinkChanged))
    assert not processes(place)


def test_a_suspended_ssh_does_not_block_closing(place: Lab) -> None:
    server = place.server()
    recorder = Recorder()
    client = BoxClient(box_of(place), recorder, **options(place, place.config(server)))
    client.start()
    recorder.wait_link(Link.CONNECTED, 30)
    for pid in processes(place):
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < PATIENCE * 5
    eventually(lambda: not processes(place), what="ssh exits")


# ------------------------------------------------------------------------------------------------- attach, choice


def test_attaching_uses_the_links_connection(place: Lab, tmux_socket: str) -> None:
    server = place.server()
    session = ["new-session", "-d", "-s", "run_1", "echo over the link; sleep 60"]
    subprocess.run(["tmux", "-L", tmux_socket, *session], check=True)
    box = box_of(place, tmux_socket=tmux_socket)
    outer = f"{tmux_socket}-outer"
    with connected(box, **options(place, place.config(server))) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
        logins = server.log.read_text().count("Accepted publickey")
        argv = attach_argv(box, "run_1")
        try:
            subprocess.run(["tmux", "-L", outer, "new-session", "-d", "-x", "100", "-y", "30", *argv], check=True)

            def screen() -> str:
                command = ["tmux", "-L", outer, "capture-pane", "-p"]
                return subprocess.run(command, capture_output=True, text=True).stdout

            eventually(lambda: "over the link" in screen())
        finally:
            subprocess.run(["tmux", "-L", outer, "kill-server"], capture_output=True)
        assert server.log.read_text().count("Accepted publickey") == logins


def test_attaching_after_ssh_was_killed(place: Lab) -> None:
    server = place.server()
    box = box_of(place)
    with connected(box, **options(place, place.config(server)), reconnects=True) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
        mark = recorder.mark()
        for pid in processes(place):
            os.kill(pid, signal.SIGKILL)
        lost = recorder.events.index(recorder.wait_link(Link.LOST, 30, after=mark))
        recorder.wait_link(Link.CONNECTED, 30, after=lost)
        logins = server.log.read_text().count("Accepted publickey")
        ssh = live(box)
        assert ssh is not None
        assert subprocess.run(ssh.attach("true"), stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
        assert server.log.read_text().count("Accepted publickey") == logins
        mark = recorder.mark()
        for pid in processes(place):
            os.kill(pid, signal.SIGKILL)
        assert "ControlSocket" not in recorder.wait_link(Link.LOST, 30, after=mark).detail


def test_the_users_master_is_used(place: Lab) -> None:
    server = place.server()
    config = place.config(server, f"ControlPath {place.folder}/%C")
    settings = options(place, config)
    place.start_master(Path(settings["ssh_config"]))
    logins = server.log.read_text().count("Accepted publickey")
    with connected(box_of(place), **settings) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
    assert server.log.read_text().count("Accepted publickey") == logins
    check = ["ssh", "-F", settings["ssh_config"], "-O", "check", NAME]
    assert subprocess.run(check, capture_output=True).returncode == 0  # it is the user's


def test_attaching_to_a_box_with_one_session(place: Lab) -> None:
    """The link has the only session of its connection; ssh then opens another connection."""
    server = place.server("MaxSessions 1\n")
    box = box_of(place)
    with connected(box, **options(place, place.config(server))) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
        ssh = live(box)
        assert ssh is not None
        done = subprocess.run(
            ssh.attach("echo attached"), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        assert "attached" in done.stdout


def test_transport_in_boxes_yaml() -> None:
    text = "boxes:\n- {name: a, host: h, transport: openssh, python: ~/p, agent_dir: /scratch}\n- {name: b, host: h}\n"
    first, second = parse_boxes(text)
    assert (first.transport, first.python, first.agent_dir) == ("openssh", "~/p", "/scratch")
    assert (second.transport, second.python, second.agent_dir) == ("auto", "", "")
    with pytest.raises(BoxesError, match="'transport' must be auto, openssh or paramiko, not 'telnet'"):
        parse_boxes(text.replace("transport: openssh", "transport: telnet"))


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_ssh(program: OpenSshClient | None) -> None:
        monkeypatch.setattr("remote.transports.choice.find_program", lambda: program)

    new, old = (
        OpenSshClient("/usr/bin/ssh", (9, 2), "OpenSSH_9.2p1"),
        OpenSshClient("/usr/bin/ssh", (8, 4), "OpenSSH_8.4p1"),
    )
    auto, forced = Box("a", host="h"), Box("a", host="h", transport="openssh")
    with_ssh(new)
    assert choose(auto) == ("openssh", "OpenSSH_9.2p1 is on this machine")
    assert choose(Box("a", host="h", transport="paramiko"))[0] == "paramiko"
    with_ssh(old)
    assert choose(auto) == ("paramiko", "OpenSSH_8.4p1 is older than 8.5")
    with pytest.raises(Refused, match=r"OpenSSH_8\.4p1 is older"):
        choose(forced)
    with_ssh(None)
    assert choose(auto) == ("paramiko", "this machine has no OpenSSH client")
    assert choose(Box("a", kind="local"))[0] == "local"


def test_boxes_yaml_comes_first(place: Lab) -> None:
    """``user``, ``port`` and ``key`` of boxes.yaml come before the configuration."""
    server = place.server()
    config = f"Host {NAME}\nHostName 127.0.0.1\nPort 1\nUser nobody\nUserKnownHostsFile {place.known}\n"
    box = box_of(place, user=server.user, port=server.port, key=str(server.user_key))
    with connected(box, **options(place, config)) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
