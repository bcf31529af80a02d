"""Whatever a box sends in any field of any frame or log line, nothing raises and the other rows stay."""

from __future__ import annotations

import json
import os
import string
from array import array
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.text import Text

from grpo_tui.actions import ACTIONS, Situation
from grpo_tui.box import store as progress
from grpo_tui.box.charts import CHARTS, ChartsView
from grpo_tui.box.curves import Curves
from grpo_tui.box.log import LOGS, RunLogs
from grpo_tui.box.needs import EndWatch
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import LineSource, Palette
from grpo_tui.kit.plot import Bitmap, evened, fitting_ticks, plot_marks, view_of_marks, x_labels
from grpo_tui.kit.sources import CheckpointsSource, CompletionSource, log_sources
from grpo_tui.views.charts.model import metric_lines
from grpo_tui.views.charts.panels import StepSource
from grpo_tui.views.home.panels import HealthSource
from remote import gate
from remote.base import Unreachable
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import ClientEvent, Link, LinkChanged, RunsReported
from remote.protocol import OPERATIONS, Decoder, ProtocolError, RemoteError
from remote.protocol.logs import Columns
from tests.support.any_json import HELLO, LOG_ROWS, ODD, RESULTS, UPDATES, mutated, nested, values

EXAMPLES = settings(
    max_examples=int(os.environ.get("GATE_EXAMPLES", "80")), deadline=None, suppress_health_check=list(HealthCheck)
)
ALLOWED = set("\n\t")


class Wire:
    """A transport that delivers given bytes and then ends."""

    def __init__(self, data: bytes) -> None:
        self.left = [data, b""]

    def send(self, data: bytes) -> None:
        pass

    def receive(self, timeout: float) -> bytes:
        return self.left.pop(0)

    def describe(self) -> str:
        return "wire"

    def algorithms(self) -> dict[str, str]:
        return {}

    def error_tail(self) -> str:
        return ""


class Laptop:
    """A client, and the store that takes its events."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []
        self.client = BoxClient(Box("b", kind="local"), self.events.append)
        self.store = Store("b", 2.5)
        self.store.apply(LinkChanged(Link.CONNECTED, latency_ms=1.0))
        self.ends = EndWatch(self.store)

    def deliver(self, frame: Any) -> None:
        """Handle one frame as the client does, and apply its events."""
        wire = Wire(json.dumps(frame).encode() + b"\n")
        with suppress(ProtocolError, Unreachable):  # they end the connection; anything else would be a fault
            self.client._converse(wire, Decoder(), {"type": "hello", "host": {}})  # type: ignore[arg-type]
        for event in self.events:
            self.store.apply(event)
        self.events.clear()
        self.look()

    def look(self) -> None:
        """Compute everything that the screen shows, for each run; the text must be clean."""
        store = self.store
        texts: list[str] = [*map(str, self.ends.ended_runs()), *map(str, self.ends.ended_jobs())]
        for name in [row.name for row in store.runs or ()] or [store.selected]:
            if store.runs:
                store.select(name)
            facts = (
                store.step, store.freshness(), store.gpu_freshness(), progress.eta(store, store.run),
                progress.cost(store, store.run), store.warning(),
                store.failed_check(), store.link_label(), store.topic_problem_now,
                store.logs.stage_times() if store.logs else None,
                store.complete_steps(), store.evaluating(), store.run, store.checkpoints(), store.gpus,
            )  # fmt: skip
            texts += [str(fact) for fact in facts]
            texts += [action.reason(Situation(store)) for action in ACTIONS]
            texts += [line.plain for line in lines(store)]
        assert not [text for text in texts if unsafe(text)]


NO_ROWS = {
    "x": "step", "state": "whole", "progress": 1.0, "first": None, "last": None, "low": 0.0, "high": 0.0,
    "rows": 0, "offset": 0,
    "series": [{"metric": chart.metric, "columns": Columns(*[array("d", [0.0])] * 7)} for chart in CHARTS],
}  # fmt: skip
"""The curves of a log without rows; those that arrived continue them."""


def unsafe(text: str) -> str:
    """The characters of a text that may steer a terminal."""
    return "".join(c for c in text if c not in ALLOWED and gate.clean(c) != c)


def lines(store: Store) -> list[Text]:
    """Every line of every text panel, and every curve drawn."""
    sources: list[LineSource] = [
        *log_sources(store), CompletionSource(store), CheckpointsSource(store), HealthSource(store)
    ]  # fmt: skip
    found = []
    for source in sources:
        first, end = source.bounds(80)
        found += [source.line(index, 80, Palette()) for index in range(first, min(end, first + 50))]
    if store.logs is not None:
        draw(NO_ROWS, store.logs)
    return found


def draw(reply: dict[str, Any], logs: RunLogs) -> None:
    """Draw every curve of a reply, and of the rows that arrived since."""
    curves = Curves(logs.run)
    curves.show(tuple(chart.metric for chart in CHARTS), 1)
    curves.due()
    curves.answer(reply, logs)
    for curve in curves.curves.values():
        view = view_of_marks(curve.marks, *curves.ends)
        plot_marks(Bitmap(20, 5), view, curve.marks)
        for axis in ("step", "time", "elapsed"):
            x_labels(view.x_low, view.x_high, 60, axis)
        evened(view, 6, False)
        fitting_ticks(view, 6, False)


@EXAMPLES
@given(mutated(UPDATES))
def test_any_value_in_an_update(frame: Any) -> None:
    laptop = Laptop()
    for update in UPDATES[:3]:
        laptop.deliver(update)
    laptop.deliver(frame)
    assert laptop.store.runs is not None


@EXAMPLES
@given(st.lists(values, max_size=4))
def test_any_rows_beside_good_ones(rows: list[Any]) -> None:
    good, last = {"run": "first good one", "state": "running"}, {"run": "last good one", "state": "running"}
    event = gate.topic_event("runs", {"value": {"runs": [good, *rows, last]}})
    assert isinstance(event, RunsReported)
    assert (event.runs[0], event.runs[-1]) == (good, last)
    assert len({row["run"] for row in event.runs}) == len(event.runs)
    assert len(event.runs) == len(rows) + 2


@EXAMPLES
@given(st.sampled_from(sorted(RESULTS)).flatmap(lambda op: st.tuples(st.just(op), mutated([RESULTS[op]]))))
def test_any_value_in_a_reply(reply: tuple[str, Any]) -> None:
    op, result = reply
    laptop = Laptop()
    laptop.deliver(UPDATES[0])
    request = laptop.client.request(op, **required(op))
    (pending,) = laptop.client._requests._pending
    laptop.deliver({"type": "response", "id": pending, "ok": True, "result": result})
    if (error := request.exception(0)) is not None:
        assert isinstance(error, RemoteError)
        assert (error.code, unsafe(error.message)) == ("bad_reply", "")
        return
    answer = request.result(0)
    assert not unsafe("".join(texts_of(answer)))
    laptop.store.select("middle")
    if op == "show_run":
        laptop.store.show("middle", answer)
    if op == "doctor":
        laptop.store.examined(answer)
    if op == "series" and laptop.store.logs is not None:
        draw(answer, laptop.store.logs)
    if op == "metrics":
        laptop.store.metrics.answer(answer)
        assert all(line.text is not None for line in metric_lines(laptop.store.metrics.rows, ChartsView()))
    if op == "show_step":
        source = StepSource(laptop.store, lambda: Curves("middle"))
        source.shown = answer
        first, end = source.bounds(80)
        assert not unsafe("".join(source.line(index, 80, Palette()).plain for index in range(first, end)))
    laptop.look()


def required(op: str) -> dict[str, Any]:
    names = {"config_text", "run", "name", "path", "session"}
    return dict.fromkeys(names & set(OPERATIONS[op].request.__annotations__), "x")


def texts_of(value: Any) -> list[str]:
    """Every string in a JSON value."""
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] if isinstance(value, str) else [text for item in items for text in texts_of(item)]


@EXAMPLES
@given(values)
def test_any_error(error: Any) -> None:
    laptop = Laptop()
    request = laptop.client.request("list_runs")
    follow = laptop.client.follow("log")
    (pending,) = laptop.client._requests._pending
    laptop.deliver({"type": "response", "id": pending, "ok": False, "error": error})
    laptop.deliver({"type": "update", "id": 1, "error": error})
    laptop.deliver({"type": "closed", "id": follow, "error": error})
    refusal = request.exception(0)
    assert isinstance(refusal, RemoteError)
    assert not unsafe(refusal.code + refusal.message + refusal.hint)


@EXAMPLES
@given(mutated([HELLO]))
def test_any_value_in_a_hello(hello: Any) -> None:
    try:
        event = gate.read_greeting(json.loads(json.dumps(hello)))
    except ProtocolError:
        return
    laptop = Laptop()
    laptop.store.apply(event)
    laptop.deliver(UPDATES[0])


@EXAMPLES
@given(
    st.sampled_from(["pong", "response", "update", "data", "rotated", "closed", "hello", "unknown"]),
    st.dictionaries(st.sampled_from(["id", "n", "offset", "text", "base64", "head", "tail", "file", "ok"]), values),
)
@example("data", {"id": 4, "offset": 0, "text": "\udc1b"})
@example("data", {"id": 4, "offset": 0, "base64": "?"})
@example("data", {"id": 4, "offset": 0})
@example("data", {"id": 4, "offset": 2**62, "text": "a\n"})
@example("update", {"id": [1]})
@example("pong", {"n": 10**400})
def test_any_frame(kind: str, fields: dict[str, Any]) -> None:
    laptop = Laptop()
    laptop.store.select("middle")
    for log in LOGS:
        laptop.store.subscribed(laptop.client.follow(log), log)
    laptop.deliver({"type": kind, **fields})


@EXAMPLES
@given(st.sampled_from(sorted(LOG_ROWS)).flatmap(lambda log: st.tuples(st.just(log), mutated(LOG_ROWS[log]))))
def test_any_value_in_a_log_line(line: tuple[str, Any]) -> None:
    log, row = line
    feed_between_good_lines(log, json.dumps(row).encode())


@EXAMPLES
@given(st.sampled_from(LOGS), st.binary(max_size=60) | st.text(st.sampled_from(string.printable + "\x1b\x9b")))
@example("train_log", b"[" * 20_000)
@example("train_log", b'{"step": 1, "loss": 1e999, "x": ' + b"9" * 400 + b"}")
@example("train_log", b'{"step": 1, "x": ' + b"9" * 5_000 + b"}")
@example("train_log", json.dumps({"step": 1, "health": nested(900)}).encode())
@example("rollouts", json.dumps({"step": 1, "prompt": nested(31)}).encode())
def test_any_bytes_in_a_log_line(log: str, line: bytes | str) -> None:
    data = line.encode() if isinstance(line, str) else line
    feed_between_good_lines(log, data.replace(b"\n", b" "))


def feed_between_good_lines(log: str, line: bytes) -> None:
    laptop = Laptop()
    laptop.store.select("middle")
    logs = laptop.store.logs
    assert logs is not None
    good = json.dumps({"step": 1, "reward": 0.5, "completion": "c"}).encode() + b"\n"
    data = good + line + b"\n" + good
    logs.feed("train_log", 0, good)
    logs.feed(log, len(good) if log == "train_log" else 0, data)
    laptop.look()
    if log == "train_log":
        assert len(logs.rows) in (3, 4)


@pytest.mark.parametrize("value", ODD, ids=lambda value: f"{type(value).__name__}")
def test_odd_values_in_every_metric(value: Any) -> None:
    logs = RunLogs("r")
    row = {"step": 1, **{chart.metric: value for chart in CHARTS}, "time/step": value, "time/a": value}
    logs.feed("train_log", 0, b"".join(json.dumps({**row, "step": step}).encode() + b"\n" for step in (1, 2, 3, value)))
    store = Store("b")
    store.apply(gate.topic_event("runs", {"value": {"runs": [{"run": "r", "state": "running", "total_steps": 9}]}}))
    store.select("r")
    store.logs = logs
    progress.eta(store, store.run)
    lines(store)
    assert logs.rows.last is None or logs.last_step is not None
