"""Support for tests of indexes: runs with logs, answers through the gate, and what the raw log says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from grpo_train.run_dir.files import to_float, to_json
from remote import gate
from remote.index.answers import IndexAnswers
from remote.protocol import OPERATIONS
from remote.protocol.check import read_request
from remote.protocol.logs import HUGE, Columns
from tests.support.clock import LeapingClock

METRICS = ("reward", "loss", "num_tokens", "rare")
Row = dict[str, Any]


def make_run(root: Path, name: str = "one") -> Path:
    """A run's ``logs/``."""
    logs = root / "training_runs" / name / "logs"
    logs.mkdir(parents=True)
    (logs.parent / "launch.json").write_text("{}")
    return logs


def supersede(logs: Path, *spans: tuple[int, int], file: str = "train_log.jsonl") -> None:
    """Write the event of a resume from an earlier step."""
    with (logs / "events.jsonl").open("a") as events:
        for span in spans:
            events.write(to_json({"step": 1, "event": "resumed", "superseded": {file: list(span)}}) + "\n")


class Box:
    """A process of indexes without the process: answers as the app gets them.

    Its clock stands: an answer is as whole as its budget allows on a machine that is fast enough.
    """

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.answers = root, IndexAnswers([place], LeapingClock())

    def ask(self, op: str, run: str = "one", **params: Any) -> Row:
        """One reply, through JSON and the gate. Raises RemoteError."""
        request = read_request(OPERATIONS[op].request, {"run": run, **params})
        result = self.answers.answer(op, self.root, self.root / "training_runs" / run, False, request)
        return gate.reply(op, json.loads(json.dumps({"ok": True, "result": result})))

    def whole(self, op: str, run: str = "one", **params: Any) -> Row:
        """The reply once the index stands."""
        for _ in range(1_000):
            reply = self.ask(op, run, **params)
            if reply.get("state", "whole") == "whole":
                return reply
        raise AssertionError("the index does not come to an end")


# ------------------------------------------------------------------------------------------------- what the log says


def rows_of(data: bytes, spans: list[tuple[int, int]], longest: int = 1 << 20) -> tuple[list[tuple[int, Row]], int]:
    """Offset and content of each row, and the number of whole lines that are none, as the gate reads them."""
    found, skipped, offset = [], 0, 0
    for line in data.split(b"\n")[:-1]:
        if not any(low <= offset < high for low, high in spans):
            row = gate.log_row(line) if len(line) <= longest else None
            step = to_float(row.get("step")) if row else None
            if row is not None and step is not None and abs(step) <= 1e12:
                found.append((offset, {**row, "step": float(int(step))}))
            else:
                skipped += 1
        offset += len(line) + 1
    return found, skipped


def columns_of(rows: list[Row], metric: str, low: float, high: float, width: int, x: str) -> Columns:
    """The columns of a metric, computed value by value."""
    cells: list[list[float]] = [[] for _ in range(width)]
    gaps = [0] * width
    placed = []
    for row in rows:
        found, at = to_float(row.get(metric)), to_float(row.get(x))
        if found is not None and at is not None and abs(at) <= 1e15 and low <= at <= high:
            placed.append((at, found))
    for at, found in sorted(placed, key=lambda one: one[0]):
        column = min(width - 1, int((at - low) / (high - low) * width)) if high > low else 0
        if abs(found) < HUGE:
            cells[column].append(found)
        else:
            gaps[column] += 1
    return Columns(
        *(
            [of(cell) if cell else 0 for cell in cells]
            for of in (min, max, lambda c: c[0], lambda c: c[-1], math.fsum, len)
        ),
        gaps,
    )  # type: ignore[arg-type]


def assert_same(found: Columns, expected: Columns) -> None:
    """Extremes and counts exactly, sums as far as addition allows."""
    for name in ("min", "max", "first", "last", "count", "gaps"):
        assert list(getattr(found, name)) == list(getattr(expected, name)), name
    for one, other in zip(found.sum, expected.sum, strict=True):
        assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)


# -------------------------------------------------------------------------------------------------------- random logs


values = st.one_of(
    st.floats(-100, 100),
    st.integers(-1000, 1000),
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", None, True, "text", 1e299, 1e300, -1e305, 10**18, 10**400, [], {}]
    ),
)
_odd_lines = st.sampled_from(
    [b"", b"{", b"[1]", b"nothing", b'{"step": "x"}', b'{"step": NaN}', b'{"step": 1e13}', b'{"step": true}', b"\xff{}",
     b'{"step": 3, "reward": NaN}', b'{"step": 4, "reward": 1e999}', b'{"reward": 5}', b'{"step": 5.5, "loss": 2}',
     b'{"step": 3, "x": ' + b"[" * 40 + b"]" * 40 + b"}", b'{"step": 7, "groups/all_right": 0.5, "step": 8}',
     b'{"step": 9, "time": 5, "\\u001b[31m": 3}', b'{"step": 10, "pad": "' + b"." * 5_000 + b'", "reward": 1}']
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn, max_rows: int = 40) -> bytes:
    """Lines of a log: steps that rise, metrics that come and go, values and lines of any kind."""
    lines, step, tokens = [], 0, 0
    keys = draw(st.lists(st.sampled_from(METRICS), unique=True))
    for _ in range(draw(st.integers(0, max_rows))):
        kind = draw(st.integers(0, 19))
        if kind == 0:
            lines.append(draw(_odd_lines))
            continue
        if kind == 1:
            keys = draw(st.lists(st.sampled_from(METRICS), unique=True))
        if kind == 2:
            step -= draw(st.integers(0, 5))
        step, tokens = step + 1, tokens + draw(st.integers(0, 100))
        odd = kind in (3, 4)
        row: Row = {"step": step, "time": f"2026-11-22T08:{step // 60 % 60:02}:{step % 60:02}.500Z"}
        for key in keys:
            plain = tokens if key == "num_tokens" else draw(st.floats(-100, 100))
            row[key] = draw(values) if odd else plain
        lines.append(to_json(row).encode())
    return b"".join(line + b"\n" for line in lines) + draw(st.sampled_from([b"", b'{"step": 1', b"\x00"]))


def spans_of(draw: st.DrawFn, data: bytes) -> list[tuple[int, int]]:
    """Superseded ranges that begin and end with lines."""
    starts = [0, *(i + 1 for i, byte in enumerate(data) if byte == 10)]
    picked = draw(st.lists(st.tuples(st.sampled_from(starts), st.sampled_from(starts)), max_size=2))
    return [(min(pair), max(pair)) for pair in picked]


# ----------------------------------------------------------------------------------------------------------- rollouts


def completion(step: int, group: int, sample: int, reward: Any = 1.0, /, **fields: Any) -> str:
    """A line of ``rollouts.jsonl`` as the engine writes it."""
    row = {
        "step": step, "time": "2026-11-22T08:00:00.000Z", "group": group, "sample": sample, "index": 7,
        "reward": reward, "advantage": 0.5, "rewards": {"accuracy": reward}, "correct": reward == 1.0,
        "formatted": True, "flexible": False, "reason": "right", "answer": "72", "gold": "72", "length": 9,
        "truncated": False, "prompt": f"prompt of {group}", "completion": "So, 72.",
    }  # fmt: skip
    return to_json({**row, **fields}) + "\n"


_texts = st.sampled_from(
    ["right", 'a "quoted" \\ one', "é\n\u2028", "", "no answer tag", "}", '", "discarded": "no_spread"}', "\ud800"]
)
_rewards = st.sampled_from([0.0, 1.0, 2.5, -1e-7, 1e300, None, float("nan"), float("inf"), 3, True, "text", 10**30])


@st.composite
def rollouts(draw: st.DrawFn, max_rows: int = 20, odd: bool = True) -> bytes:
    """Completions of rising steps; ``odd``: of steps, values and lines of any kind."""
    lines, step = [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, max_rows))):
        kind = draw(st.integers(0, 9))
        step += kind == 0
        fields: Row = {"reason": draw(_texts), "answer": draw(_texts), "completion": draw(_texts) * 3}
        if odd and kind == 1:
            lines.append(draw(_odd_lines) + b"\n")
        if odd and kind == 2:
            fields |= {draw(st.sampled_from(["group", "length", "truncated", "rewards", "correct"])): draw(values)}
            fields["reason"] = draw(st.sampled_from([None, 5, ["x"], "x" * 300]))
        if kind == 5:
            fields["discarded"] = draw(st.sampled_from(["no_spread", "surplus", *([None, 5, "Ü"] if odd else [])]))
        if kind == 6:
            fields["facts"] = {"a": 1, "discarded": draw(_texts)}
        if odd and kind == 3:
            step -= draw(st.integers(0, 3))
        if odd and kind == 4:
            fields |= {"step": draw(values)}
        reward = draw(_rewards) if odd else draw(st.sampled_from([0.0, 1.0]))
        text = completion(step, draw(st.integers(0, 2)), draw(st.integers(0, 9)), reward, **fields)
        lines.append(text.encode(errors="backslashreplace"))
    return b"".join(lines)


def samples_of(data: bytes, spans: list[tuple[int, int]]) -> list[Row]:
    """What each sample's row says, as a reply has it, without reasons."""
    found = []
    for offset, row in rows_of(data, spans)[0]:
        count = {
            key: int(value) if (value := to_float(row.get(key))) is not None and 0 <= value < 1 << 31 else None
            for key in ("group", "sample", "length", "index")
        }
        count["problem"] = count.pop("index")
        flags = {key: row.get(key) if isinstance(row.get(key), bool) else None for key in FLAGS}
        discarded = row.get("discarded")
        flags["discarded"] = isinstance(discarded, str) and re.fullmatch("[a-z_]+", discarded) is not None
        numbers = {
            key: number if to_float(number := row.get(key)) is not None else None for key in ("reward", "advantage")
        }
        reason = row.get("reason")
        found.append(
            {"offset": offset, "step": int(row["step"]), **count, **numbers, **flags,
             "reason": reason if isinstance(reason, str) else None}
        )  # fmt: skip
    return found


FLAGS = ("correct", "formatted", "flexible", "truncated")
