"""The light: green only while a fresh answer says so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from grpo_tui.box.backups import Termination
from grpo_tui.box.store import Store
from remote.events import Link, LinkChanged, RunsReported, TopicFailed

GOOD = {"safe": True, "kept": "backup", "obstacles": [], "count": 0, "whole": True, "age_s": 0.0, "again_s": 10.0}
RUN = {"run": "one", "state": "finished", "step": 4}


class Told:
    """A connected box whose light is green, and a clock."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.time = 1_000.0
        self.store = Store("box", now=lambda: 5.0)
        self.termination = Termination(self.store, is_local=is_local, clock=lambda: self.time)
        self.store.apply(LinkChanged(Link.CONNECTED))
        self.report(RUN)
        self.time += 5
        if not is_local:
            self.answer(GOOD)

    def report(self, *rows: dict[str, Any]) -> None:
        self.store.apply(RunsReported([dict(row) for row in rows]))

    def answer(self, reply: dict[str, Any]) -> None:
        assert self.termination.due()
        question = self.ask()
        assert not self.termination.due()
        self.termination.answer(question, reply)

    def ask(self) -> object:
        question = self.termination.about()
        self.termination.asking.start(question)
        return question

    @property
    def reason(self) -> str:
        light = self.termination.light()
        assert light.safe == (not light.reason)
        return light.reason


def test_what_turns_the_light_red() -> None:
    told = Told()
    assert told.reason == ""
    told.store.apply(LinkChanged(Link.STALE))
    assert told.reason == "not known yet"
    told.store.apply(LinkChanged(Link.LOST, "gone"))
    assert told.reason == "not known: not connected"
    told.store.apply(LinkChanged(Link.CONNECTED))
    assert told.reason == ""
    told.report({**RUN, "state": "running"})
    assert told.reason == "1 run live"
    assert not told.termination.due()
    told.report({**RUN, "step": 5})
    assert told.reason == "checking what changed"
    told.time += 2
    told.answer(GOOD)
    assert told.reason == ""
    told.store.apply(TopicFailed("runs", "disk full"))
    assert told.reason == "not known: the runs cannot be read"
    told.report({**RUN, "step": 5})
    told.time += 31
    assert told.reason == "not known: checked 31 s ago"
    told.termination.fail(told.ask(), "the engine on this box is too old")
    assert told.reason == "not known: the engine on this box is too old"
    assert not told.termination.due()
    told.time += 61
    assert told.termination.due()


def test_an_answer_holds_from_its_question_on() -> None:
    told = Told()
    told.time += 11
    question = told.ask()
    told.time += 25  # the box took long
    told.report({**RUN, "step": 9})
    told.termination.answer(question, GOOD)
    assert told.reason == "checking what changed"
    told.report(RUN)
    assert told.reason == ""
    told.time += 6
    assert told.reason == "not known: checked 31 s ago"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"name": "one", "code": "behind"}, "one is ahead of its backup, 2 more"),
        ({"name": "one", "code": "no_destination"}, "no destination for backups is described"),
        ({"name": "one", "unreadable": "?"}, "one cannot be read, 2 more"),
        ({"name": "one", "code": "newer", "reason": "burns\nbrightly"}, "one burns brightly, 2 more"),
    ],
)
def test_the_first_reason_in_few_words(row: dict[str, Any], reason: str) -> None:
    told = Told()
    told.time += 11
    told.answer({**GOOD, "safe": False, "kept": "", "obstacles": [row], "count": 3})
    assert told.reason == reason


def test_a_mount_is_green_and_says_so() -> None:
    told = Told()
    told.time += 11
    told.answer({**GOOD, "kept": "mount", "obstacles": [{"name": "one", "code": "no_backup"}], "count": 1})
    light = told.termination.light()
    assert (light.safe, light.reason) == (True, "kept on the mount only, no second copy")


def test_this_machine_has_a_light_with_its_first_backup() -> None:
    told = Told(is_local=True)
    assert not told.termination.wanted
    assert not told.termination.due()
    backup = {"destination": "s3", "same_disk": False, "step": 4, "behind": 0, "time": 1.0}
    told.report({**RUN, "backup": backup})
    assert told.termination.wanted
    assert told.reason == "not known yet"


Happening = some.sampled_from(["live", "over", "changed", "stale", "lost", "connected", "wait", "answer", "no", "fail"])


@given(some.lists(Happening, max_size=12))
def test_no_sequence_makes_a_wrong_green(happenings: list[str]) -> None:
    told, step, answered, at = Told(), 4, 4, 1_005.0
    state, link, verdict = "finished", Link.CONNECTED, True
    for each in happenings:
        if each in ("live", "over", "changed"):
            step += each == "changed"
            state = {"live": "running", "over": "finished"}.get(each, state)
            told.report({**RUN, "state": state, "step": step})
        elif each in ("stale", "lost", "connected"):
            link = Link(each)
            told.store.apply(LinkChanged(link))
        elif each == "wait":
            told.time += 17
        elif each == "fail":
            told.termination.fail(told.ask(), "no")
            verdict = False
        else:
            verdict, answered, at = each == "answer", step, told.time
            told.termination.answer(told.ask(), {**GOOD, "safe": verdict, "kept": "backup" if verdict else ""})
        if told.termination.light().safe:
            assert verdict
            assert (state, link, answered) == ("finished", Link.CONNECTED, step)
            assert told.time - at <= 30
