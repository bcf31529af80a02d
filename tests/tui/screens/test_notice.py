from __future__ import annotations

from pathlib import Path

from grpo_tui.app import GrpoApp
from remote.boxes import Box, load_boxes
from remote.events import Link, LinkChanged
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient


async def test_reconnect_reads_boxes_yaml_again(start: Start, boxes_file: Path) -> None:
    def reload_box(box: Box) -> Box:
        return next(one for one in load_boxes(boxes_file) if one.name == box.name)

    async with start(wait="87/200", boxes_file=boxes_file, reload_box=reload_box) as session:
        session.client.on_event(LinkChanged(Link.REFUSED, "the key was refused"))
        await session.until_text("not connected to h200-a")
        boxes_file.write_text(boxes_file.read_text().replace("192.0.2.10", "192.0.2.99"))
        await session.press("c")
        await session.until(lambda: len(session.clients) == 2)
        assert session.clients[1].box.host == "192.0.2.99"


async def test_box_without_runs(start: Start) -> None:
    async with start(lambda client: None) as session:
        await session.until_text("no runs yet", "press n to launch")


async def test_connecting_refused_and_no_engine(start: Start) -> None:
    def script(client: FakeClient) -> None:
        client.quiet = True

    async with start(script) as session:
        await session.until_text("connecting to h200-a")
        session.client.on_event(LinkChanged(Link.REFUSED, "the key was refused [publickey]"))
        await session.until_text("not connected to h200-a", "the key was refused [publickey]", "try again")
        await session.press("c")
        assert session.client.reconnects == 1

    hint = "on the box: cd /x && make setup"

    def bare(client: FakeClient) -> None:
        client.answers["doctor"] = {
            "checks": [{"name": "engine", "ok": False, "detail": "not installed", "hint": hint}]
        }

    async with start(bare) as session:
        await session.until_text("this box cannot train yet", "cd /x && make setup")


async def test_client_that_cannot_start(start: Start) -> None:
    def broken(client: FakeClient) -> None:
        raise RuntimeError("no such module")

    from grpo_tui.app import Options

    app = GrpoApp(Options(Box("x", host="y")), make_client=lambda box, on_event: broken(FakeClient(box, on_event)))  # type: ignore[arg-type, return-value]
    async with app.run_test(size=(100, 30)) as pilot:
        session = Session(app, [], pilot, [], [])
        await session.until_text("cannot start the client: no such module")
