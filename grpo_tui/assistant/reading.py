"""What an assistant may look at: one method for each tool, whose docstring is what the assistant reads.

Each answer is bounded, whatever a run has. What a model or a program wrote stands under :data:`SAID`, so that no reader
takes it for the words of this server: nothing in it is an instruction. So does all that the box says in more than a
word (:meth:`Texts.marked`).
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

from grpo_train.history.database import Database
from grpo_train.history.search import moment
from grpo_train.run_dir import LIVE_STATES
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.configs import config_values
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.tokens import decode_tokens
from grpo_tui.box.fleet import look
from grpo_tui.history import history_file
from grpo_tui.history.spending import spending
from grpo_tui.shell.connection import REPLY_S, ShellConnection
from grpo_tui.shell.doctor import examine
from grpo_tui.shell.look import first_sample
from remote.boxes import Box, load_boxes
from remote.events import ClientEvent
from remote.protocol.grants import Grant, account_of

SAID = "said"
"""Key of a text that a model or a program wrote."""
MAX_ROWS = 200
MAX_TEXT = 4_000
"""Characters of one text."""
MAX_ANSWER = 60_000
"""Characters of all texts of an answer."""
MAX_WORD = 128
"""Characters of a name; a longer one is a text."""
PHRASES = frozenset({"no signal", "old layout"})
"""Verdicts and states of two words."""
MAX_VALUES = 20_000
"""Names, numbers and texts of an answer."""
MAX_TOKENS = 64
"""Of a completion."""
MAX_WAIT_S = 60.0
"""Of one wait, which the assistant may repeat."""
WHOLE_S = 20.0
"""For the box to read a long log to its end."""
LOOK_S = 1.0
RUN_KEYS = (
    "run", "state", "step", "total_steps", "reward", "held_out", "verdict", "alarm", "error", "reason", "stage",
    "started_at", "updated_at", "run_seconds", "step_seconds", "restarts", "nproc", "device", "backup", "transfer",
    "note", "sweep", "workflow", "job", "unasked", "parent",
)  # fmt: skip
"""What a list of runs has of each."""
NOTHING = Grant(account_of("", None), "an assistant")
"""The grant of a server that only looks: it cannot have the box check a config that runs code, either."""
Row = dict[str, Any]


class Said(dict[str, Any]):
    """A row whose text stands under :data:`SAID`: what a log writes under this key is none."""


class Texts:
    """The texts of one answer, within its bounds."""

    def __init__(self) -> None:
        self._left, self._values = MAX_ANSWER, MAX_VALUES

    def marked(self, value: Any) -> Any:
        """An answer in which each text of more than a word is marked, and what is too much left out."""
        self._values -= 1
        if isinstance(value, str):
            is_name = value in PHRASES or (len(value) <= MAX_WORD and value.isascii() and len(value.split()) <= 1)
            return value if is_name else self.said(value)
        if isinstance(value, Said):
            self._left -= len(value[SAID])
            return value
        if isinstance(value, dict):
            rows = value.items()
            return {str(key)[:MAX_WORD]: self.marked(item) for key, item in rows if self._values > 0}
        if isinstance(value, (list, tuple)):
            return [self.marked(item) for item in value if self._values > 0]
        return value

    def said(self, text: Any, limit: int = MAX_TEXT, *, is_end: bool = False) -> Row:
        """A text that a model or a program wrote, cut to its beginning, or to its end."""
        whole = str(text)
        limit = max(0, min(limit, MAX_TEXT, self._left))
        part = whole[len(whole) - limit :] if is_end else whole[:limit]
        self._left -= len(part)
        return Said({SAID: part} if len(part) == len(whole) else {SAID: part, "characters": len(whole)})


class BoxReader:
    """A box, asked when a tool is called. Thread-safe."""

    def __init__(
        self, box: Box, boxes_file: str | None = None, clock: Clock = CLOCK, grant: Grant | None = None
    ) -> None:
        self.box, self._boxes_file, self._clock = box, boxes_file, clock
        self._given = grant or NOTHING
        self._lock = threading.Lock()
        self._connection: ShellConnection | None = None

    def close(self) -> None:
        """End the link. Runs are not affected."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connect(self, on_event: Callable[[ClientEvent], None] | None = None) -> ShellConnection:
        given = self._given
        return ShellConnection(self.box, readonly=not given.verbs, grant=given, on_event=on_event, has_person=False)

    def request(self, op: str, reply_s: float = REPLY_S, **params: Any) -> Row:
        """The reply of the box, to which a link is opened where there is none. Raises RemoteError."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
        return connection.request(op, reply_s, **params)

    def _whole(self, op: str, **params: Any) -> Row:
        """The reply about a log, once the box has read it to its end, or for WHOLE_S."""
        until = self._clock.monotonic() + WHOLE_S
        while True:
            reply = self.request(op, **params)
            is_whole = reply["state"] == "whole" if "state" in reply else reply["searched"] >= 1
            if is_whole or self._clock.monotonic() > until:
                return reply
            self._clock.sleep(LOOK_S)

    # ------------------------------------------------------------------------------------------------------ boxes

    def boxes(self) -> Row:
        """All boxes of boxes.yaml at a glance: live runs, free GPUs, dollars per hour, idle time, problems."""
        return {"this": self.box.name, "boxes": [asdict(look(each)) for each in load_boxes(self._boxes_file)]}

    def doctor(self) -> Row:
        """Whether this box is ready for a run: checks with their level (ok, warning, error) and the command that fixes
        what is not."""
        return {"box": self.box.name, "checks": list(examine(self.box, "", []))}

    def gpus(self) -> Row:
        """A sample of each GPU of this box: use, memory, power, temperature, processes."""
        heard: queue.Queue[ClientEvent] = queue.Queue()
        with self._connect(heard.put):
            sampled = first_sample(heard)
        return {"gpus": sampled.gpus, "note": sampled.note}

    def cost(self, since: str = "7d", by: Literal["run", "box"] = "run") -> Row:
        """What runs and boxes cost, from this machine's history: since "7d", "24h" or a date. Dollars are null where
        the price of a box is not known."""
        now = self._clock.time()
        if (start := moment(since, now)) is None:
            raise UserError(f"since {since}: expected a time span such as 7d or 12h, or a date", code="bad_query")
        spent = spending(Database(history_file()), start, now)
        rows = spent.by_run() if by == "run" else spent.by_box()
        return {"since": since, "rows": [asdict(row) for row in rows[:MAX_ROWS]], "more": max(0, len(rows) - MAX_ROWS)}

    # ------------------------------------------------------------------------------------------------------- runs

    def runs(self, state: str = "", limit: int = 50) -> Row:
        """The runs of this box, newest first, each with its verdict (collapsed, diverging, suspicious, no signal, flat,
        improving, done) and since which step. state: only these, such as "running"; "live" for all that are at work."""
        rows = self.request("list_runs", verdicts=True)["runs"]
        wanted = [row for row in rows if not state or row.get("state") == state or (state == "live" and _is_live(row))]
        limit = _within(limit, MAX_ROWS)
        return {
            "box": self.box.name,
            "runs": [_kept(row) for row in wanted[:limit]],
            "more": max(0, len(wanted) - limit),
        }

    def run(self, run: str) -> Row:
        """Everything about a run: state, verdict with its evidence, error, checkpoints, evaluations, and how it was
        started."""
        reply = self.request("show_run", run=run, verdict=True)
        launch = reply["launch"]
        return {
            "run": reply["run"],
            "path": reply["path"],
            "summary": _joined(reply["summary"]),
            "checkpoints": reply["checkpoints"][-MAX_ROWS:],
            "evaluations": _evaluations(reply),
            "workflow": reply.get("workflow") or {},
            "started_with": {key: launch[key] for key in ("argv", "overrides", "ckpt", "version") if key in launch},
            "config_problem": reply.get("config_problem", ""),
        }

    def events(self, run: str, last: int = 50, kind: str = "") -> Row:
        """What happened to a run, in order: launches, resumes with changed keys, saves, evaluations, restarts, health.
        kind: only events whose name contains it."""
        rows = self.request("show_run", run=run)["events"]
        wanted = [row for row in rows if kind in str(row.get("event", ""))]
        count = _within(last, MAX_ROWS)
        return {"run": run, "events": wanted[-count:], "earlier": max(0, len(wanted) - count)}

    def config(self, run: str) -> Row:
        """The resolved configuration of a run: section.key to value."""
        return {"run": run, "config": config_values(self.request("show_run", run=run)["config_text"])}

    def config_differences(self, runs: list[str]) -> Row:
        """The keys of the configuration in which 2 to 20 runs differ, with the value of each run."""
        if not 2 <= len(runs) <= 20:
            raise UserError("name 2 to 20 runs", code="bad_request")
        reply = self.request("run_facts", runs=runs)
        found = {row["run"]: row.get("config", {}) for row in reply["facts"] if "run" in row}
        keys = sorted({key for values in found.values() for key in values})
        return {
            "differences": {key: {run: values.get(key) for run, values in found.items()} for key in keys},
            "keys_that_are_the_same": len(reply["same"]),
            "not_read": sorted(set(runs) - set(found)),
        }

    def wait(
        self,
        run: str,
        until: Literal["step", "end", "verdict", "evaluations"] = "end",
        step: int = 0,
        seconds: float = 30,
    ) -> Row:
        """Wait up to 60 s until a run has reached a step, has ended, has another verdict than at the call, or until its
        evaluations are done; then its row, and whether it came. Call it again to wait longer."""
        return self.watch(run, until, step, seconds, lambda done, total: None)

    def watch(self, run: str, until: str, step: int, seconds: float, on_look: Callable[[int, int], None]) -> Row:
        """As ``wait``; ``on_look`` gets the step and the number of steps at each look."""
        deadline = self._clock.monotonic() + min(MAX_WAIT_S, max(0.0, seconds))  # in this order, for NaN
        first: Any = None
        while True:
            reply = self.request("show_run", run=run, verdict=True)
            row, evaluating = reply["summary"], [each.get("state") in LIVE_STATES for each in reply["evaluations"]]
            word = (row.get("verdict") or {}).get("word")
            first = first if first is not None else word or ""
            came = {
                "step": (row.get("step") or 0) >= step,
                "end": not _is_live(row),
                "verdict": bool(word) and word != first,
                "evaluations": bool(evaluating) and not any(evaluating),
            }[until]
            can_come = _is_live(row) or until == "evaluations"
            if came or self._clock.monotonic() >= deadline or not can_come:
                return {"run": run, "came": came, "is_live": _is_live(row), "summary": _kept(row)}
            on_look(int(row.get("step") or 0), int(row.get("total_steps") or 0))
            self._clock.sleep(LOOK_S)

    # ----------------------------------------------------------------------------------------------------- curves

    def metrics(self, run: str) -> Row:
        """The names of a run's metrics, with their last, lowest and highest value."""
        reply = self._whole("metrics", run=run)
        return {"run": run, "steps": [reply["first_step"], reply["last_step"]], "metrics": reply["metrics"]}

    def curves(
        self, run: str, metrics: list[str], first: float | None = None, last: float | None = None, columns: int = 40
    ) -> Row:
        """Up to 8 metrics of a run over its steps, in at most 120 columns: each column has the first step, the lowest,
        the mean and the highest value; gaps are NaN or infinite values."""
        if not 1 <= len(metrics) <= 8:
            raise UserError("name 1 to 8 metrics; the tool 'metrics' lists them", code="bad_request")
        width = _within(columns, 120)
        reply = self._whole("series", run=run, metrics=metrics, low=first, high=last, width=width)
        low, span = reply["low"], (reply["high"] - reply["low"]) / width
        found: Row = {}
        for row in reply["series"]:
            if (packed := row.get("columns")) is None:
                found[row["metric"]] = {"problem": row.get("unreadable", "not read")}
                continue
            filled = [index for index in range(width) if packed.count[index]]
            found[row["metric"]] = {
                "step": [round(low + index * span, 2) for index in filled],
                "min": [_short(packed.min[index]) for index in filled],
                "mean": [_short(packed.sum[index] / packed.count[index]) for index in filled],
                "max": [_short(packed.max[index]) for index in filled],
                "gaps": int(sum(packed.gaps)),
            }
        return {"run": run, "is_whole": reply["state"] == "whole", "curves": found}

    def changes(self, run: str, metric: str, direction: Literal["drops", "rises"] = "drops") -> Row:
        """Where a metric drops most, or rises most, beyond its noise: the step, the level before and after it."""
        reply = self._whole("level_changes", run=run, metric=metric, rises=direction == "rises")
        return {"run": run, "metric": metric, direction: reply["levels"]}

    def step(self, run: str, step: float) -> Row:
        """All values that a run logged at a step, and the median of the ten values before for the main ones."""
        names = ["reward", "accuracy", "loss", "kl", "grad_norm", "entropy", "completions/mean_length"]
        reply = self._whole("show_step", run=run, at=step, metrics=names)
        return {"run": run, "step": reply["step"], "row": reply["row"], "before": reply.get("before", {})}

    # --------------------------------------------------------------------------------------------------- rollouts

    def rollouts(self, run: str, step: int, count: int = 4, problem: int | None = None, tokens: int = 0) -> Row:
        """Completions of a step of a run with their rewards and reasons; count of them, at most 16, those with the
        highest and with the lowest reward in turn. problem: only of this one. tokens: up to 64 of each completion where
        they were kept, the ones that the sampler found least likely: log-probability, entropy, ratio of trainer to
        sampler, and whether the loss clipped it (low, high) or left it out (masked)."""
        reply = self._whole("rollout_step", run=run, step=step)
        samples = [row for row in reply["samples"] if problem is None or row.get("problem") == problem]
        chosen = _both_ends(samples, _within(count, 16))
        groups, found = reply["groups"][:64], self._texts(run, chosen, tokens)
        return {"run": run, "step": reply["step"], "groups": groups, "samples": found}

    def search_rollouts(self, run: str, where: list[Any], step: int | None = None, limit: int = 8) -> Row:
        """Completions of a run that meet a condition, newest first. A condition is [FIELD, OPERATOR, VALUE],
        ["and", …], ["or", …] or ["not", CONDITION]. Numbers (step, group, sample, reward, advantage, length, problem):
        = != < <= > >=; flags (correct, formatted, truncated, discarded): = with true or false; texts (reason, prompt,
        completion, answer, gold, task, text): = != and ~ for a regular expression."""
        reply = self._whole("search_rollouts", run=run, where=where, step=step, limit=_within(limit, 16))
        return {"run": run, "searched": reply["searched"], "samples": self._texts(run, reply["matches"])}

    def _texts(self, run: str, rows: Sequence[Row], tokens: int = 0) -> list[Row]:
        """Samples with their texts, in the order of the rows, and with some of their tokens."""
        offsets = [row["offset"] for row in rows if "offset" in row]
        if not offsets:
            return []
        reply, texts = self.request("samples", run=run, offsets=offsets, characters=MAX_TEXT), Texts()
        found = []
        for row in reply["samples"]:
            written = ("prompt", "completion", "answer", "gold", "text")
            kept = {key: value for key, value in row.items() if key not in (*written, "tokens", "offset")}
            for key in written:
                if isinstance(row.get(key), str):
                    kept[key] = texts.said(row[key], is_end=key == "prompt")
            if tokens and row.get("tokens"):
                kept["tokens"] = _unlikely(row, _within(tokens, MAX_TOKENS), texts)
            found.append(kept)
        return found

    # ------------------------------------------------------------------------------------------------------- logs

    def logs(self, run: str) -> Row:
        """The log files of a run and its evaluations, with their sizes."""
        reply = self.request("log_files", run=run)
        rows = [{key: row[key] for key in ("path", "group", "size") if key in row} for row in reply["files"][:MAX_ROWS]]
        return {"run": run, "files": rows, "more": max(0, len(reply["files"]) - MAX_ROWS) + reply["left_off"]}

    def log_lines(self, run: str, path: str, last: int = 40, level: Literal["", "warning", "error"] = "") -> Row:
        """The last lines of a log of a run (path as in the tool 'logs'), at most 200. level: only those of it."""
        reply = self.request("read_log", run=run, path=path, before=_within(last, MAX_ROWS), after=0, level=level)
        lines = "\n".join(str(row.get("text", "")) for row in reply["lines"])
        return {"run": run, "path": path, "total": reply["total"], "lines": Texts().said(lines, is_end=True)}

    def search_log(self, run: str, path: str, pattern: str) -> Row:
        """The first lines of a log of a run that match a regular expression, at most 20, with their byte offsets."""
        reply = self._whole("search_log", run=run, path=path, pattern=pattern)
        texts, rows = Texts(), []
        for offset in reply["around"][:20]:
            line = self.request("read_log", run=run, path=path, at=offset, before=0, after=1)["lines"]
            rows += [{"offset": offset, "line": texts.said(row.get("text", ""))} for row in line[:1]]
        return {"run": run, "path": path, "total": reply["total"], "searched": reply["searched"], "lines": rows}

    # ------------------------------------------------------------------------------------------------ evaluations

    def evaluations(self, run: str) -> Row:
        """The evaluations of a run: accuracy of each checkpoint on each dataset, with its interval where it has one."""
        return {"run": run, "evaluations": _evaluations(self.request("show_run", run=run))}

    def compare(self, run: str, others: list[str], steps: list[int] | None = None) -> Row:
        """Evaluated steps of other runs against the same steps of a run, problem by problem: the paired difference of
        accuracy with its 95 % interval, problems gained and lost. Empty steps = all that are evaluated."""
        reply = self.request("compare_evaluations", run=run, others=others, steps=steps or [])
        return {"run": run, "comparisons": reply["comparisons"][:MAX_ROWS], "problems": reply["problems"][:MAX_ROWS]}

    def acts(self) -> list[Callable[..., Row]]:
        """The tools that change something: none."""
        return []

    def refuse_call(self, tool: str, arguments: Row, reason: str) -> None:
        """A call that reached no tool."""

    def tools(self) -> list[Callable[..., Row]]:
        return [
            self.runs, self.run, self.metrics, self.curves, self.changes, self.step, self.events, self.config,
            self.config_differences, self.rollouts, self.search_rollouts, self.logs, self.log_lines, self.search_log,
            self.evaluations, self.compare, self.wait, self.boxes, self.gpus, self.cost, self.doctor,
        ]  # fmt: skip


def _kept(row: Row) -> Row:
    """What a list has of a run."""
    return _joined({key: row[key] for key in RUN_KEYS if row.get(key) is not None})


def _joined(row: Row) -> Row:
    """A run with the end of its console as one text."""
    error = row.get("error")
    if not isinstance(error, dict) or not error.get("console_tail"):
        return dict(row)
    tail = Texts().said("\n".join(map(str, error["console_tail"])), is_end=True)
    return {**row, "error": {**error, "console_tail": tail}}


def _is_live(row: Row) -> bool:
    return row.get("state") in LIVE_STATES


def _within(count: int, most: int) -> int:
    return max(1, min(count, most))


def _short(value: float) -> float:
    """Five digits: the others cost the assistant tokens."""
    return round(value, 4 - math.floor(math.log10(abs(value)))) if value else 0.0


def _evaluations(reply: Row) -> list[Row]:
    keys = ("name", "dataset", "state", "problem", "metrics")
    return [{key: row[key] for key in keys if key in row} for row in reply["evaluations"][-MAX_ROWS:]]


def _unlikely(row: Row, count: int, texts: Texts) -> list[Row]:
    """The tokens of a completion that its sampler found least likely, in their order; [] for damaged ones."""
    with suppress(ValueError):
        known = [(token, number) for number, token in enumerate(decode_tokens(row["tokens"])) if token.logp is not None]
        chosen = sorted(sorted(known, key=lambda each: each[0].logp or 0.0)[:count], key=lambda each: each[1])
        return [
            Said(
                token=number,
                **texts.said(str(row.get("completion", ""))[token.start : token.end]),
                logp=_short(token.logp or 0.0),
                entropy=None if token.entropy is None else _short(token.entropy),
                ratio=None if token.ratio is None else _short(token.ratio),
                **({"fate": token.fate} if token.fate else {}),
            )
            for token, number in chosen
        ]
    return []


def _both_ends(rows: Iterable[Row], count: int) -> list[Row]:
    """Rows with the highest and the lowest reward, in turn."""
    ranked = sorted(rows, key=lambda row: -(row.get("reward") or 0.0))
    chosen: list[Row] = []
    while ranked and len(chosen) < count:
        chosen.append(ranked.pop(0 if len(chosen) % 2 == 0 else -1))
    return chosen
