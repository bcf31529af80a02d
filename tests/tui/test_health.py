from __future__ import annotations

from typing import Any

import pytest

from grpo_tui.model.health import KINDS_KEPT, SENTENCE_LENGTH, SENTENCES_KEPT, Health, sentences_of, tone_of
from grpo_tui.model.run_logs import RunLogs
from tests.tui.fake import ADVICE, DEAD, NEAR_ZERO, OFF_POLICY, jsonl


def told(*rows: object) -> Health:
    health = Health()
    for step, said in enumerate(rows, start=1):
        health.take(step, said)
    return health


def test_a_sentence_is_the_same_one_while_its_figures_move() -> None:
    rows = [[DEAD.format(share=0.5 + step / 50), ADVICE.format(scale=step * 99, completions=8)] for step in range(1, 9)]
    dead, advice = told([NEAR_ZERO], *rows).now
    assert (dead.since, dead.last, dead.steps) == (2, 9, 8)
    assert dead.sentence == DEAD.format(share=0.66)
    assert advice.since == 2


def test_what_comes_again_holds_since_then_and_remembers_when_it_began() -> None:
    low = [OFF_POLICY.format(ess=0.44)]
    (now,) = told([], low, low, [], low).now
    assert (now.since, now.first, now.steps) == (5, 2, 3)


def test_past_has_alarms_and_warnings_only_the_latest_first() -> None:
    health = told([OFF_POLICY.format(ess=0.4), NEAR_ZERO], [DEAD.format(share=0.6)], [])
    assert [(one.tone, one.last) for one in health.past] == [("warn", 2), ("warn", 1)]
    assert health.now == []
    assert (health.is_logged, health.tone) == (True, "muted")


def test_a_row_without_health_is_an_old_engines() -> None:
    assert not told(None).is_logged
    assert not told([DEAD.format(share=0.6)], None).now


@pytest.mark.parametrize(
    ("sentence", "tone"),
    [("alarm: x", "bad"), ("warning: x", "warn"), (NEAR_ZERO, "muted"), ("alarming", "muted"), ("", "muted")],
)
def test_the_first_word_is_the_tone(sentence: str, tone: str) -> None:
    assert tone_of(sentence) == tone


@pytest.mark.parametrize("said", [None, "alarm: a string", {"alarm": 1}, 3, [["alarm: nested"], 3, None, ""]])
def test_anything_else_is_no_sentence(said: Any) -> None:
    assert sentences_of(said) == []


def test_what_is_said_is_one_line_and_bounded() -> None:
    assert sentences_of(["warning:\n\x1b[2Jtwo\tlines"]) == ["warning: two lines"]
    health = Health()
    for step in range(400):
        letters = "".join(chr(97 + int(digit)) for digit in str(step))
        health.take(step, [f"alarm: {letters} {index * 'x'} " + "y" * 9999 for index in range(99)])
    assert len(health.now) == SENTENCES_KEPT
    assert len(health.now) + len(health.past) == KINDS_KEPT
    assert max(len(one.sentence) for one in health.now) <= SENTENCE_LENGTH


def test_a_resume_takes_back_what_the_steps_it_replaces_have_said() -> None:
    rows = [{"step": step, "health": [OFF_POLICY.format(ess=0.4)] if step > 1 else []} for step in range(1, 5)]
    logs = RunLogs("run")
    logs.feed("train_log", 0, jsonl(rows))
    assert logs.health.now[0].since == 2
    kept = len(jsonl(rows[:1]))
    event = {"event": "resumed", "from_step": 1, "superseded": {"train_log.jsonl": [kept, len(jsonl(rows))]}}
    logs.feed("events", 0, jsonl([event]))
    assert (logs.health.now, logs.health.past, logs.health.is_logged) == ([], [], True)
