"""The answers that the laptop keeps: the same as they came, bounded, and never in the way."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.box.kept import FILE, AnswerCache, KeptAnswers
from remote.boxes import Box
from remote.gate import reply
from remote.protocol.logs import unpack_series
from tests.support.any_json import RESULTS
from tests.support.histories import COLLAPSED

RUNS: dict[str, Any] = {"runs": [{"run": "a", "state": "finished", "step": 3}]}


def admitted(op: str) -> dict[str, Any]:
    return reply(op, {"ok": True, "result": RESULTS[op]})


@pytest.mark.parametrize("op", ["show_run", "series", "metrics"])
def test_an_answer_comes_back_as_it_was(tmp_path: Path, op: str) -> None:
    cache = AnswerCache(tmp_path, now=lambda: 7.0)
    cache.put("h200-a", op, {"run": "r", "low": None}, admitted(op))
    cache.put("h200-a", "runs", {}, RUNS)
    cache.flush()
    again = AnswerCache(tmp_path)
    kept = again.get("h200-a", op, {"low": None, "run": "r"})
    assert kept is not None
    assert (kept.answer, kept.at) == (admitted(op), 7.0)
    assert again.get("h200-a", "runs", {}) == (RUNS, 7.0)
    assert again.get("h200-b", op, {"run": "r", "low": None}) is None
    assert again.get("h200-a", op, {"run": "s", "low": None}) is None
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_packed_columns_are_those_that_were_unpacked() -> None:
    from remote.protocol.logs import pack_series

    answer = admitted("series")
    assert unpack_series(pack_series(answer)) == answer


def test_the_oldest_answers_make_room(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    cache = AnswerCache(tmp_path, max_bytes=20_000, now=lambda: float(next(ticks)))
    for index in range(60):
        cache.put("b", "show_run", {"run": f"r{index}"}, admitted("show_run"))
        cache.flush()
        assert cache.get("b", "show_run", {"run": "r0"}) is not None  # used all the time, so it stays
    kept = [index for index in range(60) if cache.get("b", "show_run", {"run": f"r{index}"})]
    assert 2 < len(kept) < 60
    assert kept[1:] == list(range(60 - len(kept) + 1, 60))


@pytest.mark.parametrize("damage", ["text", "version", "column"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    import sqlite3

    cache = AnswerCache(tmp_path)
    cache.put("b", "runs", {}, RUNS)
    cache.flush()
    if damage == "text":
        (tmp_path / FILE).write_bytes(b"not a database, but as long as one" * 1_000)
    else:
        with sqlite3.connect(tmp_path / FILE) as file:
            file.execute("PRAGMA user_version = 9" if damage == "version" else "UPDATE answers SET answer = x'00'")
    assert cache.get("b", "runs", {}) is None
    for _ in range(2):
        cache.put("b", "runs", {}, RUNS)
        cache.flush()
    kept = cache.get("b", "runs", {})
    assert kept is not None
    assert kept.answer == RUNS


def test_a_folder_that_takes_nothing_costs_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = AnswerCache(tmp_path / "file" / "below")
    cache.put("b", "runs", {}, RUNS)
    cache.flush()
    assert cache.get("b", "runs", {}) is None


def test_an_answer_passes_the_gate_again(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    cache.put("b", "runs", {}, {"runs": [{"run": "a\x1b]52;c;eA==\x07", "state": "running"}]})
    cache.put("b", "metrics", {}, {"metrics": "none"})
    cache.flush()
    kept = cache.get("b", "runs", {})
    assert kept is not None
    assert kept.answer["runs"][0]["state"] == "unreadable"
    assert cache.get("b", "metrics", {}) is None


def fill(folder: Path, box: str) -> None:
    cache = AnswerCache(folder)
    for index in range(30):
        cache.put(box, "runs", {"n": index}, RUNS)
    cache.flush()


def test_two_programs_use_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    programs = [context.Process(target=fill, args=(tmp_path, box)) for box in ("a", "b")]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    cache = AnswerCache(tmp_path)
    assert all(cache.get(box, "runs", {"n": index}) for box in ("a", "b") for index in range(30))


def test_a_list_is_kept_at_once_where_a_state_or_a_verdict_changed() -> None:
    kept: list[list[dict[str, Any]]] = []
    answers = KeptAnswers(Box("local", kind="local"), None, lambda op, params, answer: kept.append(answer["runs"]))
    row = {"run": "a", "state": "finished", "step": 3, "verdict": None}
    judged = {**row, "verdict": COLLAPSED.to_json()}
    for runs in ([row], [row], [judged], [judged], [{**judged, "state": "running"}]):
        answers.keep_runs(runs)
    assert kept == [[row], [judged], [{**judged, "state": "running"}]]
