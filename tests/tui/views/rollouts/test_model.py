"""What is known of a run's completions, and what is asked of the box: on a real index."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.history.query import QueryError
from grpo_train.run_dir.tokens import Token
from grpo_tui.views.rollouts.model.reader import RolloutChoices, RolloutReader
from grpo_tui.views.rollouts.model.rollouts import PAGE, RolloutSteps
from grpo_tui.views.rollouts.model.samples import (
    ORDERS,
    RolloutSearch,
    condition,
    groups_of,
    histogram,
    order_label,
    ordered,
    parts_of,
    same_beginning,
    why,
)
from grpo_tui.views.rollouts.model.tokens import values_of
from remote.index.rollout_answers import compiled
from tests.support.index import Box, completion, make_run


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Reading:
    """A reader on the index of a real file."""

    def __init__(self, root: Path, log: str, choices: RolloutChoices | None = None) -> None:
        self.file = make_run(root) / "rollouts.jsonl"
        self.file.write_text(log)
        self.box, self.clock = Box(root, root / "cache"), Clock()
        self.choices = choices or RolloutChoices()
        self.reader = RolloutReader("one", self.choices, self.clock)
        self.asked: list[str] = []

    def settle(self, newest: int = 0, is_live: bool = False) -> RolloutReader:
        """Answer requests until there are none."""
        rollouts = self.reader.rollouts
        for _ in range(100):
            self.reader.settle()
            found = False
            if (step := rollouts.step_due()) is not None:
                rollouts.answer_step(step, self._ask("rollout_step", step=step.step))
                found = True
            if (key := rollouts.steps.due(newest, is_live)) is not None:
                ends = {name: value for name, value in (("low", key.low), ("high", key.high)) if value is not None}
                rollouts.steps.answer(key, self._ask("rollout_steps", **ends))
                found = True
            others = self.reader.group.samples if self.reader.group else []
            if (texts := rollouts.texts_request(self.reader.shown, others)) is not None:
                rollouts.answer_texts(texts, self._ask("samples", offsets=list(texts[1]), characters=texts[2]))
                found = True
            if self.reader.search is not None and (page := self.reader.search.due()) is not None:
                params = {name: value for name, value in page[1].items() if name != "run"}
                self.reader.search.answer(page[0], self._ask("search_rollouts", **params))
                found = True
            if not found:
                return self.reader
        raise AssertionError("it asks again and again")

    def _ask(self, op: str, **params: Any) -> dict[str, Any]:
        self.asked.append(op)
        return self.box.ask(op, **params)

    @property
    def at(self) -> tuple[int | None, int | None, int | None]:
        """Step, group and sample under the cursor."""
        reader = self.reader
        group, sample = reader.group, reader.sample
        return reader.step, group.number if group else None, sample["sample"] if sample else None


def log_of(steps: range, groups: int = 3, samples: int = 4) -> str:
    return "".join(
        completion(step, group, sample, float(sample <= group))
        for step in steps for group in range(groups) for sample in range(samples)
    )  # fmt: skip


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path, log_of(range(1, 6)))


# steps, samples, texts ---------------------------------------------------------------------------------------------


def test_the_newest_step_is_shown_first(reading: Reading) -> None:
    reader = reading.settle()
    assert reading.at == (5, 1, 0)  # half of group 1 is right
    assert [group.number for group in reader.groups] == [1, 0, 2]
    assert [row.step for row in reader.rollouts.steps.rows] == [1, 2, 3, 4, 5]
    assert sorted(reading.asked) == ["rollout_step", "rollout_steps", "samples", "samples"]
    text = reader.rollouts.text(reader.shown[0])
    assert text is not None
    assert text["completion"]


def test_a_step_is_found_and_kept(reading: Reading) -> None:
    reading.settle()
    reading.asked.clear()
    for step in (2, 5, 2):
        reading.reader.go_to_step(step)
        reading.settle()
        assert reading.at[0] == step
    assert reading.asked.count("rollout_step") == 1
    reading.reader.go_to_step(99)
    assert reading.settle().step == 5
    assert reading.reader.rollouts.asked == 99


def test_new_steps_of_a_live_run_are_followed(reading: Reading) -> None:
    reading.settle(is_live=True)
    with reading.file.open("a") as file:
        file.write(log_of(range(6, 8)))
    reading.clock.seconds += 60
    reader = reading.settle(is_live=True)
    assert (reader.rollouts.steps.last, len(reader.rollouts.steps.rows)) == (7, 7)
    assert reader.follows
    reader.choose_group(reader.groups[1])
    assert not reader.follows


def test_a_step_that_grows_is_asked_again(tmp_path: Path) -> None:
    text = log_of(range(1, 3))
    half = text.index("\n", len(text) * 3 // 4) + 1
    reading = Reading(tmp_path, text[:half])
    reading.settle(is_live=True)
    before = reading.at
    with reading.file.open("a") as file:
        file.write(text[half:])
    reading.clock.seconds += 60
    reader = reading.settle(is_live=True)
    assert reader.rollouts.page is not None
    assert len(reader.rollouts.page.samples) == 12
    assert reading.at == before


def test_superseded_steps_are_forgotten(reading: Reading) -> None:
    reading.settle()
    reading.file.write_text(log_of(range(1, 4)))
    reading.reader.rollouts.invalidate()
    reader = reading.settle()
    assert [row.step for row in reader.rollouts.steps.rows] == [1, 2, 3]
    assert reader.step == 3


@given(st.lists(st.integers(1, 5 * PAGE), max_size=6), st.integers(1, 5 * PAGE))
def test_the_table_grows_without_gaps(visited: list[int], first: int) -> None:
    file = [*range(1, 5 * PAGE, 3)]
    steps = RolloutSteps(Clock())
    for step in [first, *visited]:
        steps.look_at(step)
        while (key := steps.due(file[-1], is_live=False)) is not None:
            low, high = key.low or 0, key.high or 10**9
            steps.answer(key, table([one for one in file if low <= one <= high], file))
            steps.look_at(step)
        known = [row.step for row in steps.rows]
        assert known == [one for one in file if known[0] <= one <= known[-1]]
        if step != first:
            near = max(one for one in file if one <= step)
            assert near in known


def table(shown: list[int], file: list[int]) -> dict[str, Any]:
    from remote.protocol.logs import StepTable

    columns = [[float(step) for step in shown], *([[1.0] * len(shown)] * 5)]
    return {
        "state": "whole", "progress": 1.0, "total": len(file), "skipped": 0, "first_step": file[0],
        "last_step": file[-1], "table": StepTable(*columns),  # type: ignore[arg-type]
    }  # fmt: skip


# groups ------------------------------------------------------------------------------------------------------------


def test_groups_are_ordered() -> None:
    samples = [
        {"offset": i, "group": i // 2, "sample": i % 2, "reward": reward, "length": 10 * i}
        for i, reward in enumerate([1.0, 1.0, 0.0, 2.0, "NaN", None, 0.0, 0.5])
    ]
    groups = groups_of(samples, [{"group": 0, "prompt": "p"}])
    assert [[group.number for group in ordered(groups, order)] for order in ORDERS] == [
        [1, 3, 0, 2], [3, 0, 1, 2], [3, 2, 1, 0], [0, 1, 2, 3],
    ]  # fmt: skip
    assert [group.number for group in ordered(groups, "mean", is_reversed=True)] == [0, 1, 3, 2]
    assert [order_label(order, False) for order in ORDERS] == ["spread ↓", "mean ↑", "length ↓", "log order"]
    assert histogram(samples) == [
        ("0", 2),
        ("0.500", 1),
        ("1.000", 2),
        ("2.000", 1),
        ("not finite", 1),
        ("no reward", 1),
    ]


NUMBERS = st.one_of(st.none(), st.floats(), st.sampled_from(["NaN", "Infinity"]), st.floats(0, 1))


@given(st.lists(NUMBERS, max_size=30))
def test_any_rewards_are_ordered_and_counted(rewards: list[Any]) -> None:
    samples = [{"offset": i, "group": i % 3 or None, "reward": reward} for i, reward in enumerate(rewards)]
    groups = groups_of(samples, [])
    for order in ORDERS:
        assert sorted(map(id, ordered(groups, order))) == sorted(map(id, groups))
    assert sum(count for _, count in histogram(samples)) == len(rewards)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"reason": "ok", "correct": True}, "right"),
        ({"reason": "wrong", "correct": False}, "wrong: 144"),
        ({"reason": "no_answer_tag"}, "no answer tag"),
        ({"reason": "truncated", "truncated": True}, "truncated"),
        ({"reason": "no_answer_tag", "truncated": True}, "truncated, no answer tag"),
        ({"correct": False}, "wrong"),
        ({}, ""),
    ],
)
def test_what_became_of_a_sample(row: dict[str, Any], expected: str) -> None:
    assert why(row, "144") == expected


def test_a_probability_near_1_is_not_1() -> None:
    def shown(logp: float) -> str:
        return dict(values_of(Token(0, 1, logp, 0.0, 1.0, "", False)))["log p"]

    assert [shown(logp) for logp in (0.0, -1e-5, -0.5, -7.0)] == [
        "0.00 (p 1.000)", "-1e-05 (p >.999)", "-0.50 (p .607)", "-7.00 (p .0009)",
    ]  # fmt: skip


# marks and matches -------------------------------------------------------------------------------------------------


def test_discarded_groups_are_last_and_not_counted() -> None:
    rows = [{"group": 0, "reward": 0.0}, {"group": 0, "reward": 1.0}]
    rows += [{"group": number, "reward": 3.0 * i, "discarded": True} for number in (1, 2) for i in range(2)]
    groups = groups_of(rows, [])
    for order in ORDERS[:-1]:
        for is_reversed in (False, True):
            assert ordered(groups, order, is_reversed)[0].number == 0
    assert [group.is_discarded for group in groups] == [False, True, True]
    assert histogram(rows) == [("0", 1), ("1.000", 1)]


def test_two_samples_are_shown(reading: Reading) -> None:
    reader = reading.settle()
    assert reader.toggle_beside() == ""
    reader = reading.settle()
    assert len(reader.shown) == 2
    one, other = (reader.rollouts.text(offset) for offset in reader.shown)
    assert one is not None
    assert other is not None
    assert one["reward"] != other["reward"]
    reader.toggle_beside()
    reader.toggle_mark()
    reader.go_to_step(2)
    reading.settle()
    reader.toggle_beside()
    assert [row["step"] for offset in reading.settle().shown if (row := reader.rollouts.text(offset))] == [2, 5]


def test_matches_of_a_step(reading: Reading) -> None:
    reading.choices.set_filter("reward=0 group<2 sample>=2")
    reader = reading.settle()
    assert [group.number for group in reader.groups] == [1, 0]
    visited = [reading.at]
    while not reader.next_match(1):
        visited.append(reading.at)
    assert visited == [(5, 1, 2), (5, 1, 3), (5, 0, 2), (5, 0, 3)]
    assert "no further match" in reader.next_match(1)
    assert reader.next_match(-1) == ""
    assert reading.at == (5, 0, 2)
    reading.choices.set_filter("")
    assert len(reading.settle().groups) == 3


def test_matches_of_the_whole_file(reading: Reading) -> None:
    reading.choices.set_filter("group=0 sample=1")
    reading.choices.is_whole_file = True
    reader = reading.settle()
    visited = [reading.at]
    while not reader.next_match(1):
        reading.settle()
        visited.append(reading.at)
    assert visited == [(step, 0, 1) for step in (5, 4, 3, 2, 1)]
    assert not reader.next_match(-1)
    reading.settle()
    assert reading.at == (2, 0, 1)


def test_a_mistake_keeps_the_last_filter(reading: Reading) -> None:
    reading.choices.set_filter("reward=0")
    with pytest.raises(QueryError):
        reading.choices.set_filter("reward=")
    assert reading.choices.filter == "reward=0"


def test_a_long_search_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.views.rollouts.model.samples.ENOUGH", 10)
    monkeypatch.setattr("grpo_tui.views.rollouts.model.samples.PAGE", 4)
    reading = Reading(tmp_path, log_of(range(1, 6)), RolloutChoices(where=["and"], filter="x", is_whole_file=True))
    search = reading.settle().search
    assert search is not None
    assert len(search.matches) == 12
    assert search.rests
    search.go_on()
    reading.settle()
    assert len(search.matches) == 24


def test_a_refused_search_is_not_repeated() -> None:
    clock = Clock()
    search = RolloutSearch("run", ["and"], None, clock)
    key, _ = search.due() or pytest.fail("nothing to ask")
    search.fail(key, "too slow", "timeout")
    clock.seconds += 60
    assert search.due() is None
    assert "too slow" in search.words()


# filter ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ["and"]),
        ('reward<1 truncated text~"wait"',
         ["and", ["reward", "<", 1.0], ["truncated", "=", True], ["text", "~", "wait"]]),
        ("not right or adv>=0.5", ["or", ["not", ["correct", "=", True]], ["advantage", ">=", 0.5]]),
        ("why:tag,wrong", ["or", ["reason", "~", "(?ai)tag"], ["reason", "~", "(?ai)wrong"]]),
        ("a.b", ["text", "~", r"(?ai)a\.b"]),
        ("answer=72 formatted=no", ["and", ["answer", "=", "72"], ["formatted", "=", False]]),
    ],
)  # fmt: skip
def test_a_filter_as_the_box_reads_it(text: str, where: list[Any]) -> None:
    assert condition(text) == where
    compiled(where)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("reward=high", 7, "reward is compared with a number"),
        ("x rewrd<1", 2, "unknown field; did you mean reward?"),
        ("correct<1", 8, "correct is true or false"),
        ("text<1", 0, "text is a text"),
        ("length~1", 0, "length is a number"),
        ("(a (b or (c (d or (e (f or (g (h or i))))))))", 36, "too many conditions"),
    ],
)
def test_a_filter_that_cannot_be(text: str, column: int, message: str) -> None:
    with pytest.raises(QueryError, match=re.escape(message)) as raised:
        condition(text)
    assert raised.value.column == column


WORDS = st.text(st.characters(codec="utf-8", exclude_characters='"'), min_size=1, max_size=6)


@given(WORDS, WORDS, st.booleans())
def test_a_word_is_found_whatever_its_case(word: str, rest: str, ascii_only: bool) -> None:
    from remote.index.rollout_answers import Candidate
    from remote.index.rollouts import Reasons, read_sample

    row = {"step": 1, "prompt": "p", "completion": rest + word.swapcase() + rest}
    if not word.isascii():
        row["completion"] = rest + word + rest
    line = json.dumps(row, ensure_ascii=ascii_only).encode()
    sample = read_sample(0, line, Reasons([]))
    assert sample is not None
    quoted = word.replace("\\", "\\\\")
    assert compiled(condition(f'"{quoted}"'))(Candidate(sample, None, lambda: line))


@pytest.mark.parametrize(
    ("completion", "prompt", "parts"),
    [
        ("<think>a</think><answer>b</answer>", "", [("think", "a"), ("answer", "b")]),
        (" a </think>\n<answer> b", "… <think>", [("think", "a"), ("answer", "b")]),
        ("Here:\n```python\n  x = 1\ny\n```\nDone", "", [("text", "Here:"), ("code", "  x = 1\ny"), ("text", "Done")]),
        ("x = 1\n```\nso", "Code:\n```python\n", [("code", "x = 1"), ("text", "so")]),
        ("<think>```\nx\n```</think>", "", [("think", "```\nx\n```")]),
        ("<answer>\n```\nx\n```\n</answer>", "", [("code", "x")]),
        ("", "", []),
    ],
)
def test_parts_of_a_completion(completion: str, prompt: str, parts: list[tuple[str, str]]) -> None:
    assert [(part.kind, part.text) for part in parts_of(completion, prompt)] == parts


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "\n```\n", "\n```py\n", "a", " b\n"])
)


@given(PIECES.map("".join), st.sampled_from(["", "x <think>", "x\n```py\n"]))
def test_parts_are_where_they_say(text: str, prompt: str) -> None:
    parts = parts_of(text, prompt)
    end = 0
    for part in parts:
        assert part.start >= end
        assert text[part.start :].startswith(part.text)
        end = part.start + len(part.text)
    letters = "".join(part.text for part in parts)
    assert letters.count("b") == text.count(" b\n")


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_the_same_beginning(one: str, other: str) -> None:
    same = same_beginning(one, other)
    assert one[:same] == other[:same]
    assert one[same : same + 1] != other[same : same + 1] or same == len(one) == len(other)
