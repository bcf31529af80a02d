"""Tunnels in the app: TensorBoard by key, forwards of boxes.yaml, the list."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_tui.dialogs.boxes import TunnelsScreen
from remote.base import BoxesError
from remote.boxes import parse_boxes
from remote.protocol import RemoteError
from tests.support.ports import free_port, own_ports
from tests.tui.conftest import BOX, Start, opened
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import RUN

BOARD = {"session": f"tensorboard_{RUN}", "port": 6006, "path": "/secret/"}


def with_board(client: FakeClient) -> None:
    learning_box(client)
    client.answers["open_tensorboard"] = BOARD


async def test_tensorboard_opens_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    async with start(with_board, wait="87/200") as session:
        tunnels = session.app.connection.tunnels
        for _ in range(2):
            await opened(session, "Y", TunnelsScreen)
            (one,) = tunnels.open
            await session.until_text(f"TensorBoard of {RUN}", one.address, "127.0.0.1:6006 on the box")
            await session.press("enter")
            await session.until(lambda: bool(shown))
            assert shown.pop() == one.address
            await session.press("escape")
        assert one.address == f"http://127.0.0.1:{one.tunnel.local_port}/secret/"
        await opened(session, "Y", TunnelsScreen)
        await session.focus("#end")
        await session.press("enter")
        await session.until_text("no tunnel is open")
        assert tunnels.open == []
    assert one.tunnel.local_port not in own_ports()


async def test_a_box_without_tensorboard(start: Start) -> None:
    def refuse(client: FakeClient, params: object) -> dict[str, object]:
        raise RemoteError("no_tensorboard", "TensorBoard did not start: no such thing")

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.answers["open_tensorboard"] = refuse

    async with start(script, wait="87/200") as session:
        await session.press("Y")
        await session.until_text("cannot open TensorBoard", "no such thing")


async def test_forwards_are_open_and_end_with_the_box(start: Start) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        box = replace(BOX, forward=[f"{free}:127.0.0.1:8888", f"{taken.getsockname()[1]}:db:5432"])
        async with start(box=box, wait="87/200") as session:
            await session.until(lambda: "is taken" in session.messages())
            (one,) = session.app.connection.tunnels.open
            assert (one.address, one.target) == (f"127.0.0.1:{free}", "127.0.0.1:8888")
            socket.create_connection(("127.0.0.1", free), 5).close()
        assert free not in own_ports()


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("8888", "must be a list"),
        ("[8888]", "must be a list"),
        ("['1:2']", "'1:2' must be LOCAL:HOST:PORT"),
        ("['1:a:2', '1:b:2']", "has a port of this machine twice"),
    ],
)
def test_forwards_of_boxes_yaml_are_checked(tmp_path: Path, forward: str, message: str) -> None:
    with pytest.raises(BoxesError, match=r"boxes\.yaml:4: 'forward'") as error:
        parse_boxes(f"boxes:\n  - name: a\n    host: h\n    forward: {forward}\n")
    assert message in str(error.value)


def test_forwards_of_boxes_yaml() -> None:
    (box,) = parse_boxes("boxes:\n  - {name: a, host: h, forward: ['8888:127.0.0.1:9999']}\n")
    assert box.forward == ["8888:127.0.0.1:9999"]
