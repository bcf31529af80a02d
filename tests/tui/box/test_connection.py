"""How much of a core the events of a box may take."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from grpo_tui.box import link as connection
from grpo_tui.box.link import BURST_S, MIN_REST_S, SHARE, Connection, EarlyClient
from grpo_tui.box.store import Store
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import ClientEvent, Link, LinkChanged
from remote.protocol import RemoteError


@pytest.mark.parametrize("read", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("left", [True, False])
def test_a_log_without_end_takes_a_share_of_a_core(monkeypatch: pytest.MonkeyPatch, left: bool, read: float) -> None:
    """Whether or not a batch takes all that has arrived; ``read``: what the client takes, per time of the app."""
    now = [0.0]
    monkeypatch.setattr(connection, "monotonic", lambda: now[0])
    link = Connection(Box("b"), Store("b"), lambda: None, connection.make_box_client)
    client = SimpleNamespace(reading_s=0.0)
    link.client = cast(BoxClient, client)

    def endless(seconds: float, apply: object) -> bool:
        now[0] += seconds
        client.reading_s += read * seconds
        return left

    monkeypatch.setattr(link.inbox, "drain", endless)
    spent, first = 0.0, link.drain(print)
    assert first == (MIN_REST_S if left else 0.0)
    while now[0] < 60:
        before = now[0]
        rest = link.drain(print)
        spent += (1 + read) * (now[0] - before)
        now[0] += rest
    assert SHARE * 55 < spent < SHARE * 60 + BURST_S + 0.1
    now[0] += BURST_S / SHARE
    assert link.drain(print) == first


def test_what_is_asked_for_before_there_is_a_link_is_refused() -> None:
    link = Connection(Box("b"), Store("b"), lambda: None, connection.make_box_client)
    with pytest.raises(RemoteError, match="not connected yet"):
        link.request("show_run", run="a").result()


def test_what_a_box_says_before_there_is_an_app_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SimpleNamespace] = []

    def make(box: Box, put: Callable[[ClientEvent], None], readonly: bool) -> SimpleNamespace:
        made.append(SimpleNamespace(box=box, put=put, start=lambda: None))
        return made[-1]

    monkeypatch.setattr(connection, "make_box_client", make)
    box, heard = Box("b"), list[ClientEvent]()
    early = EarlyClient(box)
    for state in (Link.CONNECTING, Link.CONNECTED):
        made[0].put(LinkChanged(state))
    assert early.make(Box("other"), heard.append) is cast(BoxClient, made[1])
    assert early.make(box, heard.append) is cast(BoxClient, made[0])
    made[0].put(LinkChanged(Link.STALE))
    assert [event.state for event in heard if isinstance(event, LinkChanged)] == [Link.CONNECTED, Link.STALE]
    assert early.make(box, heard.append) is cast(BoxClient, made[2])
