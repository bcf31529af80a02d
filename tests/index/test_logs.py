"""Files of a run: lines by place, searches, levels, and what is counted."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.index import log_scan
from remote.index import log_scan as read_lines
from remote.index.log_index import OpenLog
from remote.index.log_scan import LineCount, Matches
from remote.index.patterns import Pattern, levels_of
from remote.protocol import RemoteError
from tests.support.index import Box, make_run

PATH = "training_runs/one/logs/console.log"
CONSOLE = [
    "step 1/9  reward 0.5", "UserWarning: grad_norm is 31 times its median", "Traceback (most recent call last):",
    '    raise ValueError("no")', "ValueError: no", "2026-11-22 ERROR rank 1 ended", "the error is small",
]  # fmt: skip


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "root", tmp_path)


def write(box: Box, text: str | bytes, path: str = PATH) -> Path:
    logs = box.root / "training_runs/one/logs"
    if not logs.exists():
        make_run(box.root)
    file = box.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def texts(reply: dict[str, Any]) -> list[str]:
    return [line["text"] for line in reply["lines"]]


def test_files_are_listed(box: Box) -> None:
    write(box, "x\n")
    write(box, "{}\n", "training_runs/one/logs/train_log.jsonl")
    write(box, "x\n", "training_runs/one/logs/rank/a.log")
    evaluation = write(box, "{}\n", "eval_runs/one_addition/step_6/completions.jsonl").parents[1]
    (evaluation / "status.json").write_text('{"training_run": "one", "state": "finished"}')
    files = box.ask("log_files")["files"]
    assert [(file["group"], file["name"]) for file in files] == [
        ("logs", "console.log"),
        ("logs", "train_log.jsonl"),
        ("logs", "rank/a.log"),
        ("one_addition", "status.json"),
        ("one_addition", "step_6/completions.jsonl"),
    ]
    assert files[0] == {**files[0], "path": PATH, "size": 2}


def test_places(box: Box) -> None:
    write(box, "".join(f"line {number}\n" for number in range(1, 101)) + "open")
    end = box.ask("read_log", path=PATH, before=3)
    assert texts(end) == ["line 99", "line 100", "open"]
    assert (end["number"], end["total"], end["counted"]) == (99, 101, 1)
    assert (end["first"], end["last"], end["lines"][-1]["open"]) == (False, True, True)
    assert texts(box.ask("read_log", path=PATH, line=42, before=1, after=2)) == ["line 41", "line 42", "line 43"]
    assert texts(box.ask("read_log", path=PATH, at=8, after=1)) == ["line 2"]
    assert box.ask("read_log", path=PATH, share=0.5, after=1)["number"] == 51
    assert box.ask("read_log", path=PATH, line=10_000)["at"] == end["size"]
    first = box.ask("read_log", path=PATH, at=0, after=2, pattern="LINE|1")
    assert first["first"]
    assert not first["last"]
    assert first["lines"][0]["marks"] == [[5, 6]]
    assert box.ask("read_log", path=PATH, at=0, after=1, pattern="line 1")["lines"][0]["marks"] == [[0, 6]]


def test_levels(box: Box) -> None:
    write(box, "\n".join(CONSOLE) + "\n")
    reply = box.ask("read_log", path=PATH, at=0)
    assert [line.get("level", "") for line in reply["lines"]] == ["", "warning", "", "", "error", "error", ""]
    assert (reply["warnings"], reply["errors"], reply["leveled"]) == (1, 2, 1)
    errors = box.ask("read_log", path=PATH, level="error", before=9)
    assert texts(errors) == [CONSOLE[4], CONSOLE[5]]
    assert errors["first"]
    assert errors["last"]
    assert texts(box.ask("read_log", path=PATH, level="warning", at=0)) == [CONSOLE[1]]
    rows = "training_runs/one/logs/train_log.jsonl", '{"text": "ValueError: no"}\n{"health": [{"level": "warning"}]}\n'
    write(box, rows[1], rows[0])
    assert box.ask("read_log", path=rows[0], at=0)["warnings"] == 1


def test_lines_that_are_long_or_hostile(box: Box) -> None:
    write(box, b"a" * 3_000_000 + b"\n" + b"\r".join(b"%d %%" % share for share in range(101)) + b"\n\xff\x1b[31mred\n")
    reply = box.ask("read_log", path=PATH, at=0, characters=10)
    assert texts(reply) == ["aaaaaaaaaa", "100 %", "\ufffdred"]
    assert reply["lines"][0]["cut"]
    assert reply["lines"][0]["length"] == 3_000_001
    assert len(box.ask("read_log", path=PATH, at=0, after=1, characters=64_000)["lines"][0]["text"]) == 64_000
    assert texts(box.ask("read_log", path=PATH, before=1)) == ["\ufffdred"]


@pytest.mark.parametrize("size", [1_500_000, 40_000_000])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_long_progress_line_is_its_last_state(box: Box, size: int, is_open: bool) -> None:
    """Also one so long that it is taken as several."""
    frames = b"\r%5d/30000 it" * (size // 15) % tuple(range(size // 15))
    write(box, b"before\n\n" + frames + (b"" if is_open else b"\nafter\n"))
    lines = box.ask("read_log", path=PATH, before=4, after=0)["lines"]
    bar = lines[-1 if is_open else -2]
    assert (bar["text"], bar["open"], bar["cut"]) == (frames.rpartition(b"\r")[2].decode(), is_open, False)
    assert all(line["length"] > 1 << 20 for line in lines[2:-1])
    if size < log_scan.LONGEST:
        assert [line["text"] for line in lines[:2]] == ["before", ""]


def test_search(box: Box) -> None:
    file = write(box, "\n".join(CONSOLE) + "\n")
    found = box.ask("search_log", path=PATH, pattern="valueerror|reward")
    assert (found["total"], found["searched"], found["before"], found["after"]) == (3, 1, 0, 0)
    lines = [box.ask("read_log", path=PATH, at=at, after=1)["lines"][0]["text"] for at in found["around"]]
    assert lines == [CONSOLE[0], CONSOLE[3], CONSOLE[4]]
    assert box.ask("search_log", path=PATH, pattern="valueerror", level="error")["total"] == 1
    assert box.ask("search_log", path=PATH, pattern="VALUEERROR")["total"] == 0, "a capital letter means it"
    with file.open("a") as log:
        log.write("ValueError: again\nValueError: op")
    assert box.ask("search_log", path=PATH, pattern="valueerror")["total"] == 4
    file.write_text("ValueError\n")
    assert box.ask("search_log", path=PATH, pattern="valueerror")["total"] == 1, "replaced"
    with pytest.raises(RemoteError, match="not a regular expression"):
        box.ask("search_log", path=PATH, pattern="(")
    with pytest.raises(RemoteError, match="does not exist"):
        box.ask("search_log", path="training_runs/one/logs/no.log", pattern="a")
    with pytest.raises(RemoteError, match="not a path inside the root"):
        box.ask("read_log", path="../secret")


def test_bytes_are_as_they_are(box: Box) -> None:
    write(box, b"\x00\xff\r\n")
    assert box.ask("log_bytes", path=PATH, at=1)["data"] == b"\xff\r\n"


def test_a_scan_goes_on_while_nobody_waits(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.index.answers.LOG_BUDGET_S", 0)
    monkeypatch.setattr(log_scan, "BLOCK", 256)
    write(box, "".join(f"{number % 7} error: x\n" for number in range(1_000)))
    reply = box.ask("read_log", path=PATH, line=500, after=1)
    assert reply["counted"] < 1
    assert reply["leveled"] < 1
    assert abs(reply["number"] - 500) < 30
    assert abs(reply["total"] - 1_000) < 60
    newest = box.ask("search_log", path=PATH, pattern="3 error", at=20_000)
    assert 0 < newest["total"] < 143
    assert newest["around"][-1] > 10_500
    assert box.answers.is_busy
    while box.answers.is_busy:
        box.answers.work(lambda: True)
    reply = box.ask("read_log", path=PATH, line=500, after=1)
    assert (reply["number"], reply["total"], reply["errors"]) == (500, 1_000, 1_000)
    assert box.ask("search_log", path=PATH, pattern="3 error")["total"] == 143


# ---------------------------------------------------------------------------------------------------- any file


LINES = st.lists(st.text("ab \réX", max_size=12), max_size=30)
PATTERNS = st.sampled_from(
    ["a", "ab", "abb|bba", "a+b", "^a", "b$", "é", "é|bbb", "X", "(?i:x)", "[^a]b", r"\s+b", r"\Aab", "x*", "abab?a",
     "(abb|x)+", "a(?=b)"]
)  # fmt: skip


def opened(file: Path) -> closing[OpenLog]:
    return closing(OpenLog(os.open(file, os.O_RDONLY), "x"))


@given(LINES, PATTERNS, st.integers(1, 40), st.lists(st.integers(0, 300), max_size=3))
@settings(max_examples=150, deadline=None)
def test_matches_are_those_of_each_line(lines: list[str], text: str, block: int, cuts: list[int]) -> None:
    data = "\n".join(lines).encode()
    flags = 0 if re.sub(r"\\.", "", text).upper() == text and text != text.lower() else re.IGNORECASE
    with pytest.MonkeyPatch.context() as patch, NamedTemporaryFile() as file:
        patch.setattr(log_scan, "BLOCK", block)
        pattern, count = Pattern(text), LineCount()
        scan = Matches(lambda part: list(pattern.lines(part)))
        for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
            file.seek(0)
            file.write(data[:end])
            file.flush()
            with opened(Path(file.name)) as source:
                assert scan.fits(source)
                assert count.fits(source)
                for one in (scan, count):
                    one.advance(source, lambda: True)
                    while one.share < 1:
                        one.advance(source, lambda: False)
        begins, place = [], 0
        for line in data.split(b"\n"):
            begins.append((place, line))
            place += len(line) + 1
        if begins[-1][1] == b"":
            begins.pop()
        wanted = [at for at, line in begins if re.search(text, line.decode(errors="replace"), flags)]
        assert scan.between(0, scan.total) == wanted
        with opened(Path(file.name)) as source:
            assert count.total(source) == len(begins)
            for number, (at, _) in enumerate(begins, 1):
                assert count.number(source, at) == number
                assert count.offset(source, number) == at


@given(LINES, st.integers(1, 20), st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_walking_reads_every_line_once(lines: list[str], chunk: int, before: int, after: int) -> None:
    data = "\n".join(lines).encode()
    with pytest.MonkeyPatch.context() as patch, NamedTemporaryFile() as file:
        patch.setattr(read_lines, "CHUNK", chunk)
        file.write(data)
        file.flush()
        with opened(Path(file.name)) as source:
            reader = read_lines.LineReader(source, levels_of("x"), None, 100)
            down, at, last = [], 0, not data
            while not last:
                rows, at, _, last = reader.around(at, 0, after + 1)
                down += rows
            up, at, first = [], len(data), not data
            while not first:
                rows, _, first, _ = reader.around(at, before + 1, 0)
                up = rows + up
                at = rows[0]["offset"]
        assert up == down
        assert [row["offset"] for row in down] == [0, *(m.end() for m in re.finditer(b"\n", data[:-1]))][: len(down)]
        assert sum(row["length"] for row in down) == len(data)
