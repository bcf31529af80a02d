"""``auto`` where ssh and a box have no algorithm in common: paramiko takes over, unless that would believe too much."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote.boxes import Box
from remote.copying import Copier
from remote.events import HostKeyAsked, Link, LinkChanged
from remote.transports import fallback
from remote.transports.choice import TransportChoice, choose, explain
from remote.transports.openssh_setup import find_program
from tests.support.agent import connected, eventually
from tests.support.ssh_lab import CONNECT, NAME, Lab, lab
from tests.support.sshd import Sshd

ONLY_PARAMIKO = "Ciphers aes256-cbc\n"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with lab() as place:
        monkeypatch.setenv("XDG_STATE_HOME", str(place.folder / "state"))
        yield place


def options(place: Lab, config: str) -> dict[str, Any]:
    path = place.folder / "config"
    path.write_text(config)
    return {"ssh_config": str(path), "host_keys_file": place.folder / "hosts"}


def box_of(place: Lab) -> Box:
    return Box("gpu-box", host=NAME, root=str(place.folder / "root"))


def refusals_of(server: Sshd) -> int:
    """Connections that found no algorithm."""
    return server.log.read_text().count("Unable to negotiate")


def refusal(place: Lab, config: str) -> str:
    with connected(box_of(place), **options(place, config), reconnects=True) as (_, recorder):
        refused = recorder.wait_link(Link.REFUSED, 30)
        assert refused.retry_in_s == 300.0
        return refused.detail


def test_paramiko_takes_over_and_is_remembered(place: Lab) -> None:
    server, box = place.server(ONLY_PARAMIKO, known=False), box_of(place)
    settings = options(place, place.config(server))
    assert choose(box)[0] == "openssh"
    with connected(box, **settings, reconnects=True) as (client, recorder):
        assert recorder.wait_for(HostKeyAsked, 30).fingerprint == server.fingerprint()
        client.answer_host_key(True)
        recorder.wait_link(Link.CONNECTED, 30)
        assert client.request("list_runs").result() == {"runs": []}
        assert Link.REFUSED not in {e.state for e in recorder.events if isinstance(e, LinkChanged)}
    eventually(lambda: refusals_of(server) == 2)
    kind, reason = choose(box)
    assert kind == "paramiko"
    assert "have no SSH algorithm in common" in reason
    assert "gpu-box connects over paramiko: the box and OpenSSH_" in explain(box)
    with connected(box, **settings) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
    assert refusals_of(server) == 2, "ssh is not tried again"
    assert choose(replace(box, transport="openssh"))[0] == "openssh"
    assert choose(replace(box, host="elsewhere"))[0] == "openssh"


def test_copies_use_it_too(place: Lab) -> None:
    server, box = place.server(ONLY_PARAMIKO, known=False), box_of(place)
    (place.folder / "root" / "here").mkdir(parents=True)
    (place.folder / "root" / "here" / "file").write_text("content")
    settings = options(place, place.config(server))
    choice = TransportChoice(box, lambda question: None, lambda event: None, **settings)
    with Copier(box, ask_host_key=lambda question: True, choice=choice) as copier:
        copier.get("here/file", place.folder)
    assert (place.folder / "file").read_text() == "content"


def test_a_remembered_choice_ends_when_it_fails(place: Lab) -> None:
    server, box = place.server("Ciphers chacha20-poly1305@openssh.com\n"), box_of(place)
    _remember(box)
    assert choose(box)[0] == "paramiko"
    with connected(box, **options(place, place.config(server)), reconnects=True) as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
    assert choose(box)[0] == "openssh"
    _remember(box)
    notes = fallback._notes.read()
    notes[box.name]["time"] -= fallback.KEPT_S
    fallback._notes.write(notes)
    assert choose(box)[0] == "openssh"


def _remember(box: Box) -> None:
    program = find_program()
    assert program is not None
    fallback.remember_fallback(box, program)


def test_both_offers_of_both_transports_are_listed(place: Lab) -> None:
    server = place.server("KexAlgorithms diffie-hellman-group1-sha1\n", known=False)
    detail = refusal(place, place.config(server))
    over_ssh, _, over_paramiko = detail.partition(" Over paramiko: ")
    assert "key exchange method: the box offers diffie-hellman-group1-sha1; ssh offers sntrup761" in over_ssh
    assert "the box offers diffie-hellman-group1-sha1; this program offers" in over_paramiko
    eventually(lambda: refusals_of(server) == 4)
    assert choose(box_of(place))[0] == "openssh"


@pytest.mark.parametrize(
    ("line", "known", "reason"),
    [
        ("Ciphers aes256-ctr", False, "your SSH configuration sets Ciphers"),
        ("", True, "known_hosts, which has the host key"),
        ("StrictHostKeyChecking yes", False, "StrictHostKeyChecking is set"),
        ("ProxyCommand nc %h %p", False, "a jump host is on the way"),
    ],
)
def test_what_only_ssh_knows_keeps_ssh(place: Lab, line: str, known: bool, reason: str) -> None:
    """Who damages two packets must not get around the user's algorithms and known_hosts."""
    server = place.server(ONLY_PARAMIKO, known=known)
    config = place.config(server, *([line.replace("nc", str(_netcat(place)))] if line else []))
    detail = refusal(place, config)
    assert "the box offers aes256-cbc" in detail
    assert reason in detail.partition("paramiko is not tried: ")[2]
    assert refusals_of(server) <= 2


def _netcat(place: Lab) -> Path:
    script = place.folder / "connect"
    script.write_text(f"#!{sys.executable}\n{CONNECT}")
    script.chmod(0o700)
    return script


def test_an_explicit_transport_stays(place: Lab) -> None:
    server = place.server(ONLY_PARAMIKO, known=False)
    box = replace(box_of(place), transport="openssh")
    with connected(box, **options(place, place.config(server)), reconnects=True) as (_, recorder):
        assert "paramiko" not in recorder.wait_link(Link.REFUSED, 30).detail
    eventually(lambda: refusals_of(server) == 2)
