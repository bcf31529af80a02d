"""Host keys over a real sshd: accepted, declined, changed, and of another machine."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from pathlib import Path

import pytest

from remote.events import BoxGreeted, HostKeyAsked, Link, MachineChanged
from remote.transports import identities
from remote.transports.identities import HostKeys, HostKeyState
from tests.support.agent import connected
from tests.support.known_hosts import box_of, refusal, trust
from tests.support.patience import PATIENCE
from tests.support.sshd import Sshd, make_key


def test_an_accepted_key_is_stored_under_the_box_name(tmp_path: Path, sshd: Sshd) -> None:
    file = tmp_path / "known_hosts"
    with connected(box_of(sshd), host_keys_file=file) as (client, recorder):
        asked = recorder.wait_for(HostKeyAsked)
        assert (asked.fingerprint, asked.key_type) == (sshd.fingerprint(), "ssh-ed25519")
        assert "h200" in asked.host
        assert not file.exists()
        client.answer_host_key(True)
        recorder.wait_link(Link.CONNECTED)
    found = subprocess.run(["ssh-keygen", "-F", "h200", "-f", str(file)], capture_output=True, text=True)
    assert found.returncode == 0  # OpenSSH reads our file
    with connected(box_of(sshd), host_keys_file=file) as (_, recorder):
        recorder.wait_link(Link.CONNECTED)
        assert not [event for event in recorder.events if isinstance(event, HostKeyAsked)]


def test_a_declined_key_is_not_stored(tmp_path: Path, sshd: Sshd) -> None:
    assert "not accepted" in refusal(box_of(sshd), tmp_path / "known_hosts", answer=False)
    assert not (tmp_path / "known_hosts").exists()


def test_close_during_the_host_key_question(tmp_path: Path, sshd: Sshd) -> None:
    with connected(box_of(sshd), host_keys_file=tmp_path / "known_hosts") as (client, recorder):
        recorder.wait_for(HostKeyAsked)
        began = time.monotonic()
        client.close()
        assert client.link is Link.CLOSED
        assert time.monotonic() - began < PATIENCE * 2


def test_a_changed_key_is_refused(tmp_path: Path, own_sshd: Sshd) -> None:
    file = tmp_path / "hosts"
    file.write_text("# a comment\n")
    trust(file, own_sshd, "h200")
    before = own_sshd.fingerprint()
    own_sshd.new_host_key()
    message = refusal(box_of(own_sshd), file)
    for part in ("CHANGED", f"{file} line 2", before, own_sshd.fingerprint(), "delete line 2"):
        assert part in message
    assert file.read_text().count("\n") == 2


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_another_key_at_the_same_address_and_at_another(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rented again at the same address, or an address that is somebody else's now: two messages."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "hosts"
    with Sshd(tmp_path, extra="ListenAddress 127.0.0.2\n", knows_agent=True) as sshd:
        trust(file, sshd, "h200")
        box = box_of(sshd, transport=transport)
        with connected(box, host_keys_file=file) as (_, recorder):
            recorder.wait_link(Link.CONNECTED)
        sshd.new_host_key()
        same = refusal(box, file)
        assert "has CHANGED at the same address (127.0.0.1)" in same
        moved = refusal(dataclasses.replace(box, host="127.0.0.2"), file)
        for part in ("ANOTHER MACHINE", "it was at 127.0.0.1, and 127.0.0.2 presents", sshd.fingerprint()):
            assert part in moved
        for message in (same, moved):
            assert f"delete line 1 of {file}" in message


def test_another_machine_with_a_known_key(own_sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied disk: the host key is the stored one, the machine is not."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    trust(tmp_path / "hosts", own_sshd, "h200")
    identities.remember_identity("h200", "127.0.0.1", "of another machine")
    for changed in (["127.0.0.1"], []):
        with connected(box_of(own_sshd), host_keys_file=tmp_path / "hosts") as (_, recorder):
            recorder.wait_for(BoxGreeted)
        assert [event.address for event in recorder.events if isinstance(event, MachineChanged)] == changed


def test_a_key_of_another_type_is_not_a_changed_key(tmp_path: Path, own_sshd: Sshd) -> None:
    file = tmp_path / "hosts"
    trust(file, own_sshd, "h200")
    own_sshd.new_host_key("ecdsa")
    message = refusal(box_of(own_sshd), file)
    assert "different type" in message
    assert "CHANGED" not in message
    assert own_sshd.fingerprint() in message


def test_the_known_one_of_several_keys_is_requested(tmp_path: Path) -> None:
    rsa = make_key(tmp_path / "rsa_host_key", "rsa")
    with Sshd(tmp_path, extra=f"HostKey {rsa}\n", knows_agent=True) as sshd:
        kind, blob = Path(f"{rsa}.pub").read_text().split()[:2]
        (tmp_path / "hosts").write_text(f"h200 {kind} {blob}\n")
        with connected(box_of(sshd), host_keys_file=tmp_path / "hosts") as (_, recorder):
            recorder.wait_link(Link.CONNECTED)


def test_known_hosts_is_read_like_openssh(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# x ssh-ed25519 AAAA\nother,x ssh-ed25519 AAAA extra words\nx ssh-rsa !!!\nx\n\n")
    keys = HostKeys(file)
    assert [entry.line for entry in keys.entries("x")] == [2]
    assert keys.check("x", "ssh-ed25519", b"\0\0\0")[0] is HostKeyState.KNOWN
    assert keys.check("x", "ssh-ed25519", b"?")[0] is HostKeyState.CHANGED
    assert keys.check("y", "ssh-ed25519", b"?")[0] is HostKeyState.UNKNOWN
    keys.add("y", "ssh-ed25519", b"?")
    assert keys.check("y", "ssh-ed25519", b"?")[0] is HostKeyState.KNOWN
    assert keys.check("y", "ssh-rsa", b"?")[0] is HostKeyState.OTHER_TYPE
