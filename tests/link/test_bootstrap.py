"""Which Python the agent runs on, and where it is stored, over a real sshd."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote import bootstrap
from remote.events import BoxGreeted, Link
from tests.support.agent import connected
from tests.support.ssh_lab import Lab, Row, lab

PYTHONS = [
    Path(found)
    for version in ("3.9", "3.8", "3.7", "3.6")
    for found in itertools.chain(
        filter(None, [shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")]),
        map(str, (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}")),
    )
]
old_python = pytest.mark.skipif(not PYTHONS, reason="no Python older than 3.10 on this machine")


@pytest.fixture
def place() -> Iterator[Lab]:
    with lab() as place:
        yield place


@old_python
def test_an_old_python_is_named_with_what_helps(place: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    old = PYTHONS[0]
    version = old.name.removeprefix("python")
    monkeypatch.setattr(bootstrap, "_PYTHONS", (str(old), "/no/such/python"))
    row = Row(place.config(place.server()))
    monkeypatch.setattr(bootstrap, "_NEW_ENOUGH", {})  # another distribution
    message = place.link(row, "openssh").message
    assert f"the newest is {version}" in message
    assert "uv python install 3.12" in message
    assert "apt-get" not in message


@old_python
def test_a_named_python_that_is_too_old(place: Lab) -> None:
    old = PYTHONS[0]
    message = place.link(Row(place.config(place.server()), {"python": str(old)}), "openssh").message
    assert f"'{old}'" in message
    assert f"is Python {old.name.removeprefix('python')}" in message
    assert (
        "'/no/python' ('python' of"
        in place.link(Row(place.config(place.server()), {"python": "/no/python"}), "openssh").message
    )


def test_a_named_python_and_directory(place: Lab) -> None:
    server = place.server()
    (server.home / "my python").symlink_to("/usr/bin/python3")
    box = place.box(Row("", {"python": "~/my python", "agent_dir": "~/some where"}), "openssh")
    config = place.folder / "config"
    config.write_text(place.config(server))
    with connected(box, ssh_config=str(config), host_keys_file=place.folder / "hosts") as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
        recorder.wait_for(BoxGreeted)
    assert len(list((server.home / "some where").glob("*.pyz"))) == 1
    assert not (server.home / ".grpo").exists()


def test_a_home_that_cannot_be_written(place: Lab) -> None:
    runtime = place.folder / "runtime"
    runtime.mkdir()
    server = place.server(environment={"HOME": "/proc", "XDG_RUNTIME_DIR": str(runtime)})
    assert place.link(Row(place.config(server)), "openssh").connected
    assert len(list((runtime / "grpo-agent").glob("*.pyz"))) == 1
    elsewhere = place.server(environment={"HOME": "/proc"})
    message = place.link(Row(place.config(elsewhere)), "openssh").message
    assert "/proc/.grpo/agent" in message
    assert "agent_dir" in message
