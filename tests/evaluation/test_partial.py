"""Samples of unfinished evaluations on disk: incomplete chunks are cut off, other samples are never mixed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_train.evaluation.results import partial as module
from grpo_train.evaluation.results.partial import Partial, PartialError, PartialWriter

KEY = {"samples": {"weights": "a"}, "grading": {"grader": "x"}}


@pytest.fixture
def partial(tmp_path: Path) -> Partial:
    found = Partial.beside(tmp_path / "step_1_addition")
    assert not found.open(KEY)
    return found


def samples(*items: int) -> list[dict[str, Any]]:
    return [{"item": item, "completion": f"é {item}\n"} for item in items]


def write(partial: Partial) -> None:
    writer = PartialWriter(partial, 0)
    writer.chunk(0, samples(4, 2))
    writer.chunk(1, samples(0, 1, 3))
    writer.verdicts([{"item": 4, "reason": "ok"}, {"item": 2, "reason": "wrong"}])
    writer.close()


def test_directory_is_hidden_beside_the_results(partial: Partial) -> None:
    assert partial.path.name == ".step_1_addition.partial"


def test_only_whole_chunks_of_a_torn_file_count(partial: Partial) -> None:
    write(partial)
    file = partial.path / "completions.0.jsonl"
    whole = file.read_bytes()
    first = whole.index(b'"chunk": 0')
    first = whole.index(b"\n", first) + 1
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        expected = {0, 1, 2, 3, 4} if size == len(whole) else {2, 4} if size >= first else set()
        assert set(partial.completions()) == expected, size
        PartialWriter(partial, 0).close()
        assert file.read_bytes() == (whole if size == len(whole) else whole[:first] if size >= first else b"")


def test_a_torn_chunk_is_overwritten(partial: Partial) -> None:
    write(partial)
    file = partial.path / "completions.0.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    writer = PartialWriter(partial, 0)
    writer.chunk(1, samples(0, 1, 3))
    writer.close()
    assert file.read_bytes() == whole


def test_a_torn_verdict_is_cut_off(partial: Partial) -> None:
    write(partial)
    file = partial.path / "verdicts.0.jsonl"
    file.write_bytes(file.read_bytes()[:-4])
    assert set(partial.verdicts()) == {4}
    PartialWriter(partial, 0).close()
    assert set(partial.verdicts()) == {4}


def test_a_block_of_zeros_is_cut_off(partial: Partial) -> None:
    """Some file systems leave one after a machine crash."""
    write(partial)
    file = partial.path / "completions.0.jsonl"
    file.write_bytes(file.read_bytes() + b"\0" * 40 + b"\n")
    assert set(partial.completions()) == {0, 1, 2, 3, 4}
    PartialWriter(partial, 0).close()
    assert b"\0" not in file.read_bytes()


@pytest.mark.parametrize("line", ["5", "[]", '{"foo": 1}', "null"])
def test_a_foreign_line_ends_the_samples(partial: Partial, line: str) -> None:
    write(partial)
    for file in ("completions.0.jsonl", "verdicts.0.jsonl"):
        with (partial.path / file).open("a") as more:
            more.write(line + "\n")
    assert set(partial.completions()) == {0, 1, 2, 3, 4}
    assert set(partial.verdicts()) == {2, 4}


def test_a_damaged_layout_is_replaced(partial: Partial) -> None:
    partial.agree({"batch_size": 4})
    (partial.path / "layout.json").write_text("{")
    partial.open(KEY)
    assert partial.agree({"batch_size": 8}) == {"batch_size": 8}


def test_a_full_disk_has_a_code_and_a_hint(partial: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, rows: Any) -> None:
        raise OSError(28, "No space left on device")

    write(partial)
    monkeypatch.setattr(module, "_append", full)
    writer = PartialWriter(partial, 0)
    with pytest.raises(
        PartialError, match=r"disk full .*; earlier samples are kept; free disk space and rerun"
    ) as error:
        writer.chunk(2, samples(5))
    assert error.value.code == "disk_full"
    writer.close()
    assert len(partial.completions()) == 5


def test_the_first_layout_applies_to_all(partial: Partial) -> None:
    assert partial.layout() is None
    assert partial.agree({"batch_size": 4}) == {"batch_size": 4} == partial.agree({"batch_size": 8})
    assert partial.layout() == {"batch_size": 4}
    assert [path.name for path in partial.path.glob(".*")] == []


def test_the_same_key_keeps_its_samples(partial: Partial) -> None:
    partial.agree({})
    write(partial)
    assert partial.open(KEY)
    assert set(partial.completions()) == {0, 1, 2, 3, 4}
    partial.check(KEY)


def test_another_key_starts_empty(partial: Partial) -> None:
    partial.agree({})
    write(partial)
    other = {**KEY, "samples": {"weights": "b"}}
    with pytest.raises(PartialError, match="samples of another evaluation"):
        partial.check(other)
    assert not partial.open(other)
    assert (partial.completions(), partial.verdicts(), partial.layout()) == ({}, {}, None)
    assert partial.open(KEY), "the first samples are restored"
    assert set(partial.completions()) == {0, 1, 2, 3, 4}


def test_another_grader_keeps_completions(partial: Partial) -> None:
    partial.agree({})
    write(partial)
    assert partial.open({**KEY, "grading": {"grader": "y"}})
    assert (len(partial.completions()), partial.verdicts()) == (5, {})


def test_files_of_several_processes_are_merged(partial: Partial) -> None:
    for process, items in enumerate([(0, 1), (2, 3)]):
        writer = PartialWriter(partial, process)
        writer.chunk(process, samples(*items))
        writer.verdicts([{"item": item} for item in items])
        writer.close()
    assert set(partial.completions()) == set(partial.verdicts()) == {0, 1, 2, 3}
