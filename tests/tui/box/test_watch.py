"""What a watched box says, by the events of its client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grpo_tui.box.fleet import BoxWatch, Fleet
from remote.boxes import Box
from remote.events import (
    ClientEvent,
    ClockMeasured,
    GpuSampled,
    HostKeyAsked,
    Link,
    LinkChanged,
    MachineChanged,
    QuestionAsked,
    RunsReported,
    TopicFailed,
)
from tests.support.agent import eventually

BOX = Box("h200", host="192.0.2.10", price_per_hour=2.5)
ENDED = {"run": "old", "state": "finished", "updated_at": "1970-01-01T00:15:00.000Z"}
"""It wrote its state at 900 s."""
LIVE = {"run": "new", "state": "running", "updated_at": "1970-01-01T00:16:00.000Z"}


class Client:
    """A client that does nothing by itself."""

    def __init__(self, box: Box, on_event: Callable[[ClientEvent], None]) -> None:
        self.on_event = on_event
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")

    def answer_host_key(self, accept: bool) -> None:
        self.calls.append(accept)

    def answer_question(self, answer: str | None) -> None:
        self.calls.append(answer)


class Watched:
    """A watch at 1,000 s on a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.watch = BoxWatch(BOX, self.make, lambda: self.now)

    def make(self, box: Box, on_event: Callable[[ClientEvent], None]) -> Any:
        self.client = Client(box, on_event)
        return self.client

    def say(self, *events: ClientEvent) -> None:
        for event in events:
            self.client.on_event(event)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_a_connected_box_says(watched: Watched) -> None:
    assert watched.watch.glance().age_s is None
    watched.say(LinkChanged(Link.CONNECTED), RunsReported([ENDED]), GpuSampled([{"free": True}, {"free": False}]))
    watched.now += 20
    glance = watched.watch.glance()
    assert (glance.price_per_hour, glance.gpus, glance.gpus_free, glance.live) == (2.5, 2, 1, ())
    assert (glance.idle_s, glance.age_s, glance.problem) == (120.0, 0.0, "")
    watched.say(ClockMeasured(60.0))
    assert watched.watch.glance().idle_s == 60.0, "the clock of the box is a minute behind"
    watched.say(RunsReported([LIVE, ENDED]))
    assert (watched.watch.glance().live, watched.watch.glance().idle_s) == (("new",), None)


def test_what_it_said_stays_with_its_age(watched: Watched) -> None:
    watched.say(LinkChanged(Link.CONNECTED), RunsReported([LIVE]))
    watched.now += 100
    watched.say(LinkChanged(Link.STALE, "no answer for 5 s"))
    assert watched.watch.glance().age_s == 5.0
    watched.now += 10
    watched.say(LinkChanged(Link.LOST, "no answer for 15 s"))
    watched.now += 5
    glance = watched.watch.glance()
    assert (glance.live, glance.problem, glance.age_s) == (("new",), "no answer for 15 s", 20.0)
    watched.say(LinkChanged(Link.CONNECTED))
    assert (watched.watch.glance().problem, watched.watch.glance().age_s) == ("", 0.0)


@pytest.mark.parametrize(
    ("question", "answer", "words"),
    [
        (HostKeyAsked("h200", "ssh-ed25519", "SHA256:x"), False, "its host key is not known"),
        (QuestionAsked("password:", False, "password"), None, "it asks to log in"),
    ],
)
def test_what_a_person_must_answer_is_declined(
    watched: Watched, question: ClientEvent, answer: object, words: str
) -> None:
    watched.say(question, LinkChanged(Link.REFUSED, "not accepted"))
    assert watched.client.calls == [answer]
    assert watched.watch.glance().problem.startswith(f"{words}: connect to it once")
    watched.say(LinkChanged(Link.CONNECTED))
    assert watched.watch.glance().problem == ""


def test_a_root_that_cannot_be_read_is_a_problem(watched: Watched) -> None:
    watched.say(LinkChanged(Link.CONNECTED), TopicFailed("runs", "input/output error"))
    assert watched.watch.glance().problem == "input/output error"
    watched.say(RunsReported([]))
    assert watched.watch.glance().problem == ""


def test_another_machine_is_a_problem_of_a_box_that_answers(watched: Watched) -> None:
    watched.say(MachineChanged("192.0.2.11"), LinkChanged(Link.CONNECTED), RunsReported([LIVE]), GpuSampled([]))
    glance = watched.watch.wait(link_s=60)
    assert (glance.live, glance.age_s) == (("new",), 0.0)
    assert glance.problem.startswith("another machine than the last time")


def test_gpus_that_cannot_be_read_are_not_free(watched: Watched) -> None:
    watched.say(LinkChanged(Link.CONNECTED), RunsReported([]), GpuSampled([{"free": True}, {"free": None}]))
    assert watched.watch.glance().gpus_said == "? of 2"
    lost = {"index": 1, "free": False, "problem": "GPU is lost"}
    watched.say(GpuSampled([{"index": 0, "free": True}, lost]))
    assert (watched.watch.glance().gpus_said, watched.watch.glance().gpu_problem) == ("1 of 2", "GPU 1: GPU is lost")
    watched.say(TopicFailed("gpu", "nvidia-smi failed: no driver"))
    glance = watched.watch.glance()
    assert (glance.gpus, glance.gpus_free, glance.gpus_said) == (None, None, "?")
    assert (glance.problem, glance.gpu_problem) == ("", "nvidia-smi failed: no driver")


def test_one_look_waits_for_runs_and_gpus(watched: Watched) -> None:
    assert watched.watch.wait(link_s=0).problem == "no connection within 0 s"
    watched.say(LinkChanged(Link.CONNECTED))
    assert "did not list its runs" in watched.watch.wait(link_s=0).problem
    watched.say(RunsReported([]), GpuSampled([]))
    assert (watched.watch.wait(link_s=60).problem, watched.watch.glance().gpus) == ("", 0)


def test_a_fleet_opens_and_closes_every_client() -> None:
    clients: list[Client] = []

    def make(box: Box, on_event: Callable[[ClientEvent], None]) -> Any:
        clients.append(Client(box, on_event))
        return clients[-1]

    fleet = Fleet([BOX, Box("other", host="192.0.2.11")], make_client=make)
    assert [client.calls for client in clients] == [[], []], "nothing is opened before the start"
    fleet.start()
    clients[1].on_event(LinkChanged(Link.LOST, "no route"))
    assert fleet.glance("other").problem == "no route"  # type: ignore[union-attr]
    assert fleet.glance("none") is None
    fleet.close()
    eventually(lambda: [client.calls for client in clients] == [["start", "close"]] * 2)
