"""Completions are found by step and by content, and their rows say what the log says."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.run_dir.files import to_json
from grpo_train.run_dir.tokens import decode_tokens, encode_tokens
from remote.index import answers, log_index, rollout_answers
from remote.index import rollouts as index
from remote.protocol import RemoteError
from tests.support.index import Box, completion, make_run, rollouts, samples_of, spans_of, supersede


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = make_run(tmp_path) / "rollouts.jsonl"
    log.write_text(
        "".join(completion(step, i // 4, i % 4, float(i % 4 < step)) for step in (1, 3, 5) for i in range(12))
    )
    return log


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path, tmp_path / "cache")


def listed(reply: dict[str, Any]) -> list[tuple[float, ...]]:
    table = reply["table"]
    columns = (table.step, table.samples, table.scored, table.reward, table.groups, table.signal)
    return list(zip(*columns, strict=True))


@settings(max_examples=60)
@given(st.data())
def test_steps_and_samples_are_those_of_the_raw_log(data: st.DataObject) -> None:
    text = data.draw(rollouts())
    spans = spans_of(data.draw, text)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        directory, box = make_run(root), Box(root, root / "cache")
        supersede(directory, *spans, file="rollouts.jsonl")
        for cut in sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3))):
            (directory / "rollouts.jsonl").write_bytes(text[:cut])
            box.whole("rollout_steps")
        (directory / "rollouts.jsonl").write_bytes(text)
        whole = samples_of(text, spans)
        expected = [{**row, "reason": row["reason"] if len(row["reason"] or "") <= 200 else None} for row in whole]
        by_step = {step: [row for row in expected if row["step"] == step] for step in {row["step"] for row in expected}}
        reply = box.whole("rollout_steps")
        assert [(step, count) for step, count, *_ in listed(reply)] == [(s, len(by_step[s])) for s in sorted(by_step)]
        assert (reply["rows"], reply["total"]) == (len(expected), len(by_step))
        for step, rows in by_step.items():
            found = box.ask("rollout_step", step=step)
            assert found["step"] == step
            assert found["samples"] == rows
        every = box.ask("search_rollouts", where=["and"], limit=1000)
        assert every["matches"] == expected[::-1]
        if expected:
            (row,) = box.ask("samples", offsets=[whole[-1]["offset"]])["samples"]
            assert {key: row.get(key) for key in whole[-1]} == whole[-1]


@given(rollouts(odd=False))
def test_the_usual_line_is_read_as_any_other(text: bytes) -> None:
    for line in text.splitlines():
        usual, other = index.Reasons([]), index.Reasons([])
        assert index._USUAL.match(line)
        expected = index.read_sample(0, b" " + line, other)
        assert (index.read_sample(0, line, usual), usual.list) == (expected, other.list)


@settings(max_examples=40)
@given(st.data())
def test_a_step_is_found_before_the_index_is_whole(data: st.DataObject) -> None:
    text = data.draw(rollouts(odd=False))
    cut = data.draw(st.integers(0, len(text)))
    start = text[:cut].rfind(b"\n") + 1
    again = text[start:]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder)
        directory, box = make_run(root), Box(root, root / "cache")
        patch.setattr(log_index, "USUAL", 300)
        patch.setattr(answers, "BUDGET_S", 0.0)
        whole = text + data.draw(st.sampled_from([b"", b'{"step": 9', again]))
        if whole.endswith(again) and len(whole) > len(text):
            supersede(directory, (start, len(text)), file="rollouts.jsonl")
        (directory / "rollouts.jsonl").write_bytes(whole)
        wanted = data.draw(st.integers(-1, 9))
        first = asked(box, wanted)
        box.whole("rollout_steps")
        then = asked(box, wanted)
        assert {key for key in then if then[key] != first.get(key)} <= {"state", "progress", "rows", "offset"}


def asked(box: Box, step: int) -> dict[str, Any]:
    """A step, or the error's code."""
    try:
        return box.ask("rollout_step", step=step)
    except RemoteError as error:
        return {"code": error.code}


def test_what_a_step_says(log: Path, box: Box) -> None:
    assert listed(box.whole("rollout_steps")) == [
        (1, 12, 12, 0.25, 3, 3),
        (3, 12, 12, 0.75, 3, 3),
        (5, 12, 12, 1, 3, 0),
    ]
    found = box.ask("rollout_step", step=4)
    assert (found["step"], found["previous"], found["next"]) == (3, 1, 5)
    assert [(row["group"], row["sample"]) for row in found["samples"]] == [(i // 4, i % 4) for i in range(12)]
    assert found["groups"] == [{"group": i, "prompt": f"prompt of {i}"} for i in range(3)]
    assert [box.ask("rollout_step", step=step)["step"] for step in (-5, 0, 1, 2, 99)] == [1, 1, 1, 1, 5]
    between = box.ask("rollout_steps", low=2, high=4)
    assert ([row[0] for row in listed(between)], between["total"], between["last_step"]) == ([3], 3, 5)


def test_problems_that_changed_since_they_were_sampled_before(log: Path, box: Box) -> None:
    def rows(step: int, rewards: dict[int, float], task: str = "") -> list[str]:
        texts = {problem: f"{task}what is {problem} + {problem}?" for problem in rewards}
        return [
            completion(step, group, sample, reward + sample, index=problem, prompt=texts[problem])
            for group, (problem, reward) in enumerate(rewards.items())
            for sample in (0, 1)
        ]

    steps = [
        *rows(1, {7: 0.0, 8: 0.5, 9: 0.5, 11: 0.0}), *rows(2, {7: 1.0}), *rows(3, {12: 1.0, 10: 0.0}, task="other "),
        *rows(5, {7: 0.75, 8: 0.0, 9: 0.5, 10: 1.0, 13: 1.0}),
    ]  # fmt: skip
    log.write_text("".join(steps))
    found = box.whole("problem_changes", step=6)
    assert found["step"] == 5
    changed = [
        (row["problem"], row["group"], row["before"], row["now"], row["before_step"]) for row in found["repeated"]
    ]
    assert changed == [(8, 1, 1.0, 0.5, 1), (7, 0, 1.5, 1.25, 2)]  # 9 is equal, and 10 was another task's
    assert found["repeated"][0]["prompt"] == "what is 8 + 8?"
    assert box.ask("problem_changes", step=1)["repeated"] == []
    assert len(box.ask("search_rollouts", where=["problem", "=", 8])["matches"]) == 4


def test_discarded_samples_are_not_in_the_means(log: Path, box: Box) -> None:
    rows = [completion(7, i // 4, i % 4, float(i % 2)) for i in range(8)]
    rows += [completion(7, 8 + i // 4, i % 4, 1.0, discarded="no_spread") for i in range(8)]
    rows += [completion(7, 10, i, float(i), facts={"a": 1}, discarded="surplus") for i in range(4)]
    with log.open("a") as file:
        file.writelines(rows)
    assert listed(box.whole("rollout_steps"))[-1] == (7, 20, 8, 0.5, 2, 2)
    found = box.ask("rollout_step", step=7)
    assert [row["discarded"] for row in found["samples"]] == [False] * 8 + [True] * 12
    matches = box.ask("search_rollouts", where=["discarded", "=", False], step=7)["matches"]
    assert len(matches) == 8
    (row,) = box.ask("samples", offsets=[found["samples"][-1]["offset"]])["samples"]
    assert row["discarded"] is True


def test_a_step_that_is_written_grows(log: Path, box: Box) -> None:
    box.whole("rollout_steps")
    for sample in range(3):
        with log.open("a") as file:
            file.write(completion(7, 0, sample, float(sample)))
        assert listed(box.whole("rollout_steps"))[-1][:3] == (7, sample + 1, sample + 1)
    assert listed(box.whole("rollout_steps"))[-1] == (7, 3, 3, 1, 1, 1)


def test_the_last_steps_are_known_at_once(log: Path, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "USUAL", 1_000)
    monkeypatch.setattr(answers, "BUDGET_S", 0.0)
    monkeypatch.setattr(rollout_answers, "TAIL", 8_000)
    first = box.ask("rollout_steps")
    assert first["state"] == "coarse"
    assert [row[:2] for row in listed(first)][-1] == (5, 12)
    assert box.whole("rollout_steps")["total"] == 3


def test_texts_are_bounded_and_say_so(log: Path, box: Box) -> None:
    log.write_text(completion(1, 0, 0, prompt="p" * 50 + "?", completion="c" * 99, facts={"a": 1}, role="judge"))
    (row,) = box.ask("samples", offsets=[0], characters=10)["samples"]
    assert (row["prompt"], row["prompt_length"]) == ("p" * 9 + "?", 51)
    assert (row["completion"], row["completion_length"]) == ("c" * 10, 99)
    assert (row["rewards"], row["facts"], row["role"], row["answer"]) == ({"accuracy": 1.0}, {"a": 1}, "judge", "72")
    assert box.ask("samples", offsets=[0], characters=0)["samples"][0]["prompt"] == ""


def test_a_sample_that_is_not_there_says_so(log: Path, box: Box) -> None:
    rows = box.ask("samples", offsets=[0, 5, 10**9])["samples"]
    assert rows[0]["step"] == 1
    assert [row["offset"] for row in rows[1:]] == [5, 10**9]
    assert all("unreadable" in row for row in rows[1:])
    with pytest.raises(RemoteError, match="at most 32 offsets"):
        box.ask("samples", offsets=[0] * 33)


def test_a_damaged_text_is_told_when_it_is_read(log: Path, box: Box) -> None:
    log.write_bytes(completion(1, 0, 0).encode()[:-4] + b"\n" + completion(1, 0, 1).encode())
    log.write_bytes(log.read_bytes().replace(b'So, 72."}', b'So, \xff"}'))
    found = box.whole("rollout_step", step=1)["samples"]
    assert [row["sample"] for row in found] == [1]
    assert "unreadable" in box.ask("samples", offsets=[found[0]["offset"]])["samples"][0]


conditions = st.recursive(
    st.sampled_from(
        [
            ["reward", ">", 0], ["reward", "=", 0], ["step", "<=", 3], ["group", "!=", 1], ["length", "<", 9],
            ["correct", "=", True], ["truncated", "!=", True], ["reason", "=", "right"], ["reason", "~", "^no"],
            ["completion", "~", "right"], ["text", "~", r"\\"], ["answer", "=", ""], ["prompt", "~", "of 2"],
        ]
    ),
    lambda inner: st.lists(inner, max_size=3).flatmap(
        lambda parts: st.sampled_from([["and", *parts], ["or", *parts], ["not", parts[0]] if parts else ["and"]])
    ),
    max_leaves=5,
)  # fmt: skip


def meets(row: dict[str, Any], where: list[Any]) -> bool:
    """The conditions, on the row of the log."""
    kind, *rest = where
    if kind in ("and", "or", "not"):
        found = [meets(row, part) for part in rest]
        return all(found) if kind == "and" else any(found) if kind == "or" else not found[0]
    symbol, value = rest
    if symbol == "~":
        texts = [row.get(name) for name in (("prompt", "completion") if kind == "text" else (kind,))]
        return any(text is not None and re.search(value, str(text)) for text in texts)
    found = row.get(kind)
    if symbol in ("=", "!="):
        return found is not None and (found == value) is (symbol == "=")
    return found is not None and {"<": found < value, "<=": found <= value, ">": found > value}[symbol]


@settings(max_examples=60)
@given(rollouts(odd=False), conditions, st.integers(1, 4), st.none() | st.integers(0, 4))
def test_a_search_finds_what_meets_the_condition(text: bytes, where: list[Any], limit: int, step: int | None) -> None:
    from remote.gate import log_row

    lines = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    rows = [(offset, log_row(line) or {}) for offset, line in zip(starts, lines, strict=False)]
    expected = [offset for offset, row in rows if meets(row, where) and step in (None, row["step"])]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (make_run(root) / "rollouts.jsonl").write_bytes(text)
        box, found, before, searched = Box(root, root / "cache"), [], None, -1.0
        while True:
            page = box.ask("search_rollouts", where=where, limit=limit, step=step, before=before)
            found += [row["offset"] for row in page["matches"]]
            before = page["next"]
            assert page["searched"] > searched
            searched = page["searched"]
            if before is None:
                break
        assert found == expected[::-1]
        assert searched == 1


def test_a_search_shows_where_it_matched(log: Path, box: Box) -> None:
    log.write_text(completion(1, 0, 0, completion="a " * 200 + "Wait, no" + " b" * 200) + completion(1, 0, 1))
    (match,) = box.ask("search_rollouts", where=["text", "~", "(?i)wait"])["matches"]
    assert "Wait, no" in match["excerpt"]
    assert len(match["excerpt"]) < 140
    (match,) = box.ask("search_rollouts", where=["reward", "=", 1], limit=1)["matches"]
    assert "excerpt" not in match


@pytest.mark.parametrize(
    "where",
    [
        [], ["and", 5], ["reward"], ["reward", ">"], ["reward", "~", "x"], ["reward", ">", "x"], ["reward", ">", True],
        ["height", "=", 1], ["text", "<", "x"], ["text", "~", "("], ["text", "~", "x" * 2_000], ["correct", "=", 1],
        ["not"], [["and"]], [None, None, None], ["and", *[["and"]] * 99],
    ],
)  # fmt: skip
def test_a_malformed_condition_is_refused(log: Path, box: Box, where: list[Any]) -> None:
    with pytest.raises(RemoteError) as error:
        box.ask("search_rollouts", where=where)
    assert error.value.code == "bad_request"
    nested: list[Any] = ["and"]
    for _ in range(10):
        nested = ["not", nested]
    with pytest.raises(RemoteError):
        box.ask("search_rollouts", where=nested)


def test_a_run_without_rollouts_says_so(tmp_path: Path, box: Box) -> None:
    make_run(tmp_path)
    assert box.ask("rollout_steps")["total"] == 0
    assert box.ask("search_rollouts", where=["and"])["matches"] == []
    assert "unreadable" in box.ask("samples", offsets=[0])["samples"][0]
    with pytest.raises(RemoteError, match="has not logged a completion yet"):
        box.ask("rollout_step", step=1)


def test_a_prompt_is_told_from_the_others(tmp_path: Path) -> None:
    def prompt(question: str) -> str:
        return f"Think before you answer, my friend.\nUser: {question}\nAssistant: let me think step by step"

    questions = ["What is 1 + 2 here?", "What is 3 + 4?", "Why? " + "so " * 200]
    texts = [prompt(question) for question in questions]
    log = make_run(tmp_path) / "rollouts.jsonl"
    log.write_text("".join(completion(1, group, 0, prompt=text) for group, text in enumerate(texts)))
    box = Box(tmp_path, tmp_path / "cache")
    found = [row["prompt"] for row in box.ask("rollout_step", step=1)["groups"]]
    assert [text.strip() for text in found] == [questions[0], questions[1], questions[2][:200].strip()]
    log.write_text(completion(1, 0, 0, prompt="x" * 300) + completion(1, 1, 0, prompt="short"))
    assert [len(row["prompt"]) for row in box.ask("rollout_step", step=1)["groups"]] == [200, 5]


def evaluated(index: int, sample: int, correct: bool, **fields: Any) -> str:
    """A line of an evaluation's completions."""
    row = {
        "step": 10, "index": index, "sample": sample, "question": f"{index} + 1?", "gold": "2", "seed": 2**63 - 1,
        "completion": "<answer>3</answer>", "length": 4, "truncated": False, "answer": "3", "correct": correct,
        "flexible": correct, "formatted": True, "reason": "wrong", "score": None, "metrics": {"hacking/x": 0.0},
        "facts": {},
    }  # fmt: skip
    return to_json({**row, **fields}) + "\n"


def test_an_evaluation_has_the_same_answers(tmp_path: Path, box: Box) -> None:
    make_run(tmp_path)
    folder = "eval_runs/one_sums/step_10_sums"
    file = tmp_path / folder / "completions.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(
        "".join(evaluated(i, s, i == s) for i in range(3) for s in range(2)) + evaluated(9, 0, True, score=7)
    )
    found = box.ask("rollout_step", step=10, folder=folder)
    rows = [(row["group"], row["sample"], row["reward"], row["correct"]) for row in found["samples"]]
    assert rows == [(i, s, float(i == s), i == s) for i in range(3) for s in range(2)] + [(9, 0, 7.0, True)]
    assert [row["prompt"] for row in found["groups"]] == ["0 + 1?", "1 + 1?", "2 + 1?", "9 + 1?"]
    (row,) = box.ask("samples", offsets=[0], folder=folder)["samples"]
    assert (row["prompt"], row["answer"], row["rewards"]) == ("0 + 1?", "3", {"hacking/x": 0.0})
    found = box.ask("search_rollouts", where=["and", ["correct", "=", True], ["prompt", "~", "^1"]], folder=folder)
    assert [(row["group"], row["sample"]) for row in found["matches"]] == [(1, 1)]
    file.write_text(evaluated(5, 0, True))  # it was evaluated again
    assert [row["group"] for row in box.ask("rollout_step", step=10, folder=folder)["samples"]] == [5]
    for outside in ("../elsewhere", "/etc", "eval_runs/../../x"):
        with pytest.raises(RemoteError) as refused:
            box.ask("rollout_step", step=10, folder=outside)
        assert refused.value.code == "bad_path"
    with pytest.raises(RemoteError) as refused:
        box.ask("rollout_step", step=10, folder="eval_runs/one_sums/step_20_sums")
    assert refused.value.code == "no_step"


def test_a_step_is_searched_before_the_index_is_whole(
    log: Path, box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(box: Box, **params: Any) -> list[Any]:
        pages, before = [], {}
        while True:
            reply = box.ask("search_rollouts", where=["reward", "=", 1.0], limit=2, **params, **before)
            pages.append((reply["matches"], reply["searched"]))
            if reply["next"] is None:
                return [reply["state"], *pages]
            before = {"before": reply["next"]}

    with monkeypatch.context() as patch:
        patch.setattr(log_index, "USUAL", 1_000)
        patch.setattr(answers, "BUDGET_S", 0.0)
        coarse = {step: found(Box(tmp_path, tmp_path / f"cache{step}"), step=step) for step in (1, 3, 4, 5)}
    box.whole("rollout_steps")
    for step, pages in coarse.items():
        assert pages[0] == "coarse"
        assert pages[1:] == found(box, step=step)[1:]


def test_a_cut_step_says_how_many_it_has(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.index.rollout_answers.MAX_SAMPLES", 3)
    rows = [{"step": 1, "group": 0, "sample": index, "reward": 1.0, "completion": "a"} for index in range(5)]
    (make_run(tmp_path) / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reply = box.ask("rollout_step", step=1)
    assert (len(reply["samples"]), reply["count"]) == (3, 5)


def test_an_evaluated_step_says_how_it_was_graded(box: Box, tmp_path: Path) -> None:
    make_run(tmp_path)
    folder = tmp_path / "eval_runs" / "one_sums" / "step_1_sums"
    folder.mkdir(parents=True)
    row = {"step": 1, "index": 0, "sample": 0, "question": "1+1", "completion": "2", "correct": True}
    (folder / "completions.jsonl").write_text(json.dumps(row) + "\n")
    ask = partial(box.ask, "rollout_step", step=1, folder="eval_runs/one_sums/step_1_sums")
    assert ask()["conditions"] == {}
    for damaged in ("", "[1]", '{"key": 3}', '{"key": {"samples": 1}}'):
        (folder / "summary.json").write_text(damaged)
        assert ask()["conditions"] == {}
    decoding = {"temperature": 0.5, "stop": ["</answer>"], "end": "\n", "huge": 1e300, "nothing": None}
    samples = {"problems": "abc", "weights": {"model": "x"}, "seed": 3, "decoding": decoding}
    (folder / "summary.json").write_text(json.dumps({"key": {"samples": samples, "grading": {"grader": "g"}}}))
    assert ask()["conditions"] == {
        "problems": "abc", "grader": "g", "decoding.temperature": 0.5, "decoding.stop": '["</answer>"]',
        "decoding.end": '"\\n"', "decoding.huge": "1e+300", "decoding.nothing": None,
    }  # fmt: skip


def tokens_line(step: int, of: int, group: int, **texts: str) -> str:
    return (
        to_json({"step": step, "of": of, "group": group, "tokens": {key[1:]: text for key, text in texts.items()}})
        + "\n"
    )


def one_token(code: int, length: int = 7) -> str:
    return encode_tokens([length], bytes([code]), b"\0", b"\0", [0])


def test_tokens_come_with_an_opened_completion_only(log: Path, box: Box) -> None:
    """Of the update that gave them last, without those that a resume superseded."""
    first = tokens_line(1, 1, 0, _1=one_token(1))
    superseded = tokens_line(4, 3, 1, _0=one_token(2), _2=one_token(2))
    lines = [tokens_line(3, 3, 0, _0=one_token(3)), tokens_line(4, 3, 1, _0=one_token(4)), "{}\n[]\n"]
    (log.parent / "tokens.jsonl").write_text(first + superseded + "".join(lines))
    supersede(log.parent, (len(first), len(first + superseded)), file="tokens.jsonl")
    found = {}
    box.whole("rollout_steps")
    for step in (1, 3, 5):
        for row in box.ask("rollout_step", step=step)["samples"]:
            assert "tokens" not in row
            (bare,) = box.ask("samples", offsets=[row["offset"]], characters=0)["samples"]
            assert "tokens" not in bare
            (text,) = box.ask("samples", offsets=[row["offset"]], characters=100)["samples"]
            if "tokens" in text:
                found[step, row["group"], row["sample"]] = (text["tokens_step"], text["tokens"])
    assert found == {
        (1, 0, 1): (1, one_token(1)), (3, 0, 0): (3, one_token(3)), (3, 1, 0): (4, one_token(4)),
    }  # fmt: skip


@pytest.mark.parametrize("damage", [b"", b"\xff\n{", b'{"step": 1, "of": "x", "group": 0, "tokens": []}\n' * 3])
def test_a_damaged_log_of_tokens_has_none(log: Path, box: Box, damage: bytes) -> None:
    (log.parent / "tokens.jsonl").write_bytes(damage)
    (row,) = box.ask("samples", offsets=[0], characters=100)["samples"]
    assert row["completion"] == "So, 72."
    assert "tokens" not in row


def test_places_of_tokens_hold_for_any_text(tmp_path: Path, box: Box) -> None:
    """What cannot be shown is replaced character by character."""
    text = "a\r\n\x1b[31mb\x00\u202ec"
    logs = make_run(tmp_path)
    (logs / "rollouts.jsonl").write_text(completion(1, 0, 0, 1.0, completion=text))
    (logs / "tokens.jsonl").write_text(
        tokens_line(1, 1, 0, _0=encode_tokens([1] * len(text), *[bytes(len(text))] * 3, [0] * len(text)))
    )
    (row,) = box.ask("samples", offsets=[0], characters=1000)["samples"]
    assert len(row["completion"]) == len(text) == decode_tokens(row["tokens"])[-1].end
    assert [at for at, letter in enumerate(row["completion"]) if letter in "abc"] == [0, 8, 11]
