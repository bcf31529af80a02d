"""A laptop without a screen: ``python -m tests.support.laptop BOX.json [OP PARAMS.json]``.

It connects, asks what became of its unanswered requests, then sends one request, as the app does. It prints an object
per line: ``greeted``, what the user would be told (``told``), ``sending``, ``reply`` or ``error``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from grpo_tui.background import ask_again
from grpo_tui.box.unanswered import UnansweredRequests
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, ClientEvent
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from textual.message import Message

    from grpo_tui.box.link import Connection
    from grpo_tui.kit.desk import Desk


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


class Laptop:
    """What :func:`grpo_tui.background.ask_again` needs of the app."""

    def __init__(self, box: Box) -> None:
        self.greeted = threading.Event()
        self.client = BoxClient(box, self._on_event)
        self.unanswered = UnansweredRequests()
        self.options = SimpleNamespace(readonly=False)
        self.connection = SimpleNamespace(box=box, request=self._request)

    def _on_event(self, event: ClientEvent) -> None:
        if isinstance(event, BoxGreeted):
            self.greeted.set()

    def _request(self, op: str, reply_s: float, **params: Any) -> Future[dict[str, Any]]:
        return self.client.request(op, reply_s, **params)

    def post_message(self, message: Message) -> None:
        pass

    def warn(self, message: str, title: str, *, run: str) -> None:
        say(told=title, detail=message)

    def receipt(self, title: str, detail: str = "", *, run: str) -> None:
        say(told=title, detail=detail)


async def main() -> None:
    laptop = Laptop(Box(**json.loads(sys.argv[1])))
    app = cast("Desk", laptop)
    laptop.client.start()
    await asyncio.to_thread(laptop.greeted.wait)
    say(greeted=True)
    await ask_again(app)
    if len(sys.argv) > 2:
        say(sending=True)
        try:
            connection = cast("Connection", laptop.connection)
            op, params = sys.argv[2], json.loads(sys.argv[3])
            say(reply=await laptop.unanswered.request(connection, op, 30.0, params))
        except RemoteError as error:
            say(error=error.to_json())
    laptop.client.close()


if __name__ == "__main__":
    asyncio.run(main())
