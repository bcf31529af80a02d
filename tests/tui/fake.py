"""A scripted client: the interface of ``remote.client.BoxClient`` without a box."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from grpo_train.run_dir.clock import CLOCK
from remote.boxes import Box
from remote.events import BoxGreeted, Link, LinkChanged, LogArrived
from remote.gate import reply, topic_event
from remote.index.answers import IndexAnswers
from remote.protocol import OPERATIONS, Cursor, RemoteError
from remote.protocol.check import read_request
from tests.support.clock import LeapingClock
from tests.tui.fake_ask import ASK_ANSWERS
from tests.tui.fake_backups import BACKUP_ANSWERS
from tests.tui.fake_rows import (
    LOGS,
    RUN,
    Record,
    ailing_rows,
    at,
    healthy,
    jsonl,
    rollout_rows,
    summary,
    token_lines,
    train_rows,
)  # fmt: skip

TASKS = {"addition": "sums", "gsm8k": "school", "gsm8k_r1_template": "school", "mbpp": "programs"}


def ailing_box(client: FakeClient) -> FakeClient:
    """:func:`learning_box` with warnings in the log of its live run."""
    learning_box(client)
    client.files[f"{LOGS}/train_log.jsonl"] = jsonl(ailing_rows(87))
    return client


def healthy_box(client: FakeClient, *records: Record) -> FakeClient:
    """:func:`learning_box` with the same health records in every row of its live run."""
    learning_box(client)
    client.files[f"{LOGS}/train_log.jsonl"] = jsonl([healthy(row, *records) for row in train_rows(87)])
    return client


def knowing_box(client: FakeClient) -> FakeClient:
    """:func:`learning_box` with an engine that lists its tasks."""
    learning_box(client)
    client.answers["list_tasks"] = {"tasks": TASKS}
    return client


class Index:
    """The index of a box, over the files of a client."""

    def __init__(self) -> None:
        root = Path(mkdtemp(prefix="grpo-index-"))
        weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self._root, cache = root / "root", root / "cache"
        cache.mkdir(mode=0o700)
        self._answers = IndexAnswers([cache], LeapingClock())

    def answer(self, op: str, files: dict[str, bytes], params: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request, as the client passes it on."""
        for name, content in files.items():
            file = self._root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)
        run = self._root / "training_runs" / params["run"]
        request = read_request(OPERATIONS[op].request, params)
        return reply(op, {"ok": True, "result": self._answers.answer(op, self._root, run, False, request)})


class FakeClient:
    """Replies and events from a script. ``asked`` has every request, ``follows`` the followed logs."""

    reading_s = 0.0
    """It has no thread that reads."""
    transport = None
    clock = CLOCK

    def __init__(self, box: Box, on_event: Any) -> None:
        self.box, self.on_event = box, on_event
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.follows: dict[int, str] = {}
        self.reading_s = 0.0
        self.consumed_bytes: dict[int, int] = {}
        self.runs: list[dict[str, Any]] = []
        self.sessions: list[dict[str, Any]] = []
        self.gpus: list[dict[str, Any]] = []
        self.facts: dict[str, dict[str, Any]] = {}
        """Run to ``config`` and ``metrics``."""
        self.greeting = {"name": box.name, "cpu_count": 2, "root": "/data"}
        self.link = LinkChanged(Link.CONNECTED, latency_ms=12.0)
        self.host_key_answers: list[bool] = []
        self.answers_given: list[str | None] = []
        self.reconnects = 0
        self.started = self.closed = False
        self.quiet = False
        self.index = Index()
        self._next = 0

    # interface of BoxClient ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.started = True
        if self.quiet:
            return
        self.on_event(self.link)
        self.on_event(BoxGreeted("agent", self.greeting))
        self.report()

    def close(self) -> None:
        self.closed = True

    def request(self, op: str, reply_s: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
        self.asked.append((op, params))
        future: Future[dict[str, Any]] = Future()
        answer = self.answers.get(op, DEFAULT_ANSWERS.get(op, {}))
        try:
            future.set_result(answer(self, params) if callable(answer) else answer)
        except RemoteError as error:
            future.set_exception(error)
        return future

    def follow(self, path: str, cursor: Cursor | None = None, tail_bytes: int | None = None) -> int:
        self._next += 1
        self.follows[self._next] = path
        self.arrive(self._next, 0, self.files.get(path, b""))
        return self._next

    def unfollow(self, subscription: int) -> None:
        self.follows.pop(subscription, None)

    def consumed(self, subscription: int, count: int) -> None:
        self.consumed_bytes[subscription] = self.consumed_bytes.get(subscription, 0) + count

    def answer_host_key(self, accept: bool) -> None:
        self.host_key_answers.append(accept)

    def answer_question(self, answer: str | None) -> None:
        self.answers_given.append(answer)

    def reconnect_now(self) -> None:
        self.reconnects += 1

    # for a test ------------------------------------------------------------------------------------------

    def report(self) -> None:
        note = "" if self.gpus else "no GPU on this box"
        for topic, value in (
            ("runs", {"runs": self.runs}),
            ("sessions", {"sessions": self.sessions}),
            ("gpu", {"gpus": self.gpus, "note": note}),
        ):
            self.on_event(topic_event(topic, {"value": value}))

    def arrive(self, subscription: int, offset: int, data: bytes, piece: int = 30_000) -> None:
        path = self.follows[subscription]
        for start in range(0, len(data), piece):
            part = data[start : start + piece]
            cursor = Cursor(path, offset + start + len(part))
            self.on_event(LogArrived(subscription, path, offset + start, part, cursor))

    def append(self, path: str, data: bytes) -> None:
        """Let a followed file grow."""
        old = self.files.get(path, b"")
        self.files[path] = old + data
        for subscription, followed in self.follows.items():
            if followed == path:
                self.arrive(subscription, len(old), data)

    def asked_for(self, op: str) -> list[dict[str, Any]]:
        return [params for name, params in self.asked if name == op]


def _show_run(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    run = params["run"]
    results = [
        {"step": str(step), "status": "ok", "accuracy": str(score), "ci_low": str(score - 0.03),
         "ci_high": str(score + 0.03)}
        for step, score in ((10, 0.57), (20, 0.71))
    ]  # fmt: skip
    return {
        "run": run, "layout": "run", "path": f"/data/training_runs/{run}", "summary": {}, "status": {}, "launch": {},
        "events": [], "superseded": {},
        "config_text": "run:\n  total_steps: 200\nmodel:\n  backbone: tiny\ntask:\n  name: addition\n",
        "checkpoints": [
            {"step": step, "problem": "", "path": f"training_runs/{run}/training_state/step_{step}"}
            for step in (10, 20, 30)
        ],
        "evaluations": [{"name": f"{run}_addition", "state": "finished", "metrics": results}],
    }  # fmt: skip


def _launch(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    run = params.get("run_name") or "run_new"
    argv = ["/opt/grpo-train", "supervise", run, "--root", "/data"]
    if params.get("dry_run"):
        shell_argv = ["grpo-train", "train", "--cfg", params["config_name"]]
        return {"run": run, "argv": argv, "shell_argv": shell_argv, "dry_run": True}
    client.runs.insert(0, summary(run, "starting", logged_at=None, run_seconds=0.0))
    client.sessions.append({"name": run, "run": run, "dead": False, "created": 0, "attached": 0})
    client.report()
    return {"run": run, "session": run, "argv": argv, "started": True}


def _evaluate(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    argv = ["/opt/grpo-train", "eval", "--training-run", params["run"], "--steps", params["steps"]]
    return {"session": f"eval_{params['run']}", "argv": argv}


def _resume(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    argv = ["/opt/grpo-train", "resume", "--training-run", params["run"], "--from-step", params["from_step"]]
    return {"session": params["run"], "argv": argv, "run": params["run"], "step": 30}


def _indexed(op: str) -> Callable[[FakeClient, dict[str, Any]], dict[str, Any]]:
    return lambda client, params: client.index.answer(op, client.files, params)


INDEXED = (
    "series", "metrics", "show_step", "level_changes", "rollout_steps", "rollout_step", "problem_changes", "samples",
    "search_rollouts", "log_files", "read_log", "search_log", "log_bytes", "gpu_history",
)  # fmt: skip


def _note(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    for row in client.runs:
        if row["run"] == params["run"]:
            row["note"] = params["text"]
    client.report()
    return {"run": params["run"], "note": params["text"]}


def _run_facts(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    """Configuration and last metrics of the runs that ``client.facts`` has, through the gate."""
    rows = [{"run": run, **client.facts.get(run, {})} for run in params["runs"]]
    return reply("run_facts", {"ok": True, "result": {"facts": rows, "same": {}}})


DEFAULT_ANSWERS: dict[str, Any] = {
    "safe_to_terminate": {
        "safe": True, "kept": "backup", "obstacles": [], "count": 0, "whole": True, "age_s": 0.0, "again_s": 10.0,
    },
    **{op: _indexed(op) for op in INDEXED},
    "show_run": _show_run,
    "run_facts": _run_facts,
    "launch": _launch,
    "evaluate": _evaluate,
    "resume": _resume,
    **BACKUP_ANSWERS,
    **ASK_ANSWERS,
    "stop": lambda client, params: {"run": params["run"], "state": "running"},
    "kill": lambda client, params: {"run": params.get("run"), "state": "killed", "left": []},
    "note": _note,
    "list_configs": {"configs": [{"name": "onbox.yaml"}], "folder": "/elsewhere"},
    "read_config": lambda client, params: {"name": params["name"], "text": "run:\n  total_steps: 5\n"},
    "doctor": {"checks": [], "ok": True},
    "box_facts": lambda client, params: reply("box_facts", {"ok": True, "result": FACTS}),
    "checkpoint_sizes": lambda client, params: reply("checkpoint_sizes", {"ok": True, "result": SIZES}),
    "spare_checkpoints": lambda client, params: reply("spare_checkpoints", {"ok": True, "result": SPARE}),
}  # fmt: skip


def learning_box(client: FakeClient, live: str = RUN, steps: int = 87) -> FakeClient:
    """A box with one live run that learns, and three runs that are over."""
    logs = f"training_runs/{live}/logs"
    client.files[f"{logs}/train_log.jsonl"] = jsonl(train_rows(steps, nan_at=30))
    client.files[f"{logs}/rollouts.jsonl"] = jsonl(
        [row for step in range(max(1, steps - 8), steps + 1) for row in rollout_rows(step)]
    )
    client.files[f"{logs}/events.jsonl"] = jsonl([{"step": 0, "time": at(300), "event": "launched"}])
    console = [
        f"[{index:03d}] step {index} done in 3.1 s, reward {1 + index / 100:.3f}" for index in range(1, steps + 1)
    ]
    client.files[f"{logs}/console.log"] = ("\n".join(console) + "\nUserWarning: this is a warning\n").encode()
    crash = {
        "summary": "rank 1 was killed by SIGKILL (out of memory?)",
        "rank": 1,
        "signal": "SIGKILL",
        "console_tail": [
            "step 11 done in 3.1 s",
            "Traceback (most recent call last):",
            "torch.OutOfMemoryError: tried to allocate 2.5 GiB",
        ],
    }

    def over(ago: float) -> dict[str, str]:
        return {"logged_at": at(ago), "updated_at": at(ago)}

    client.runs = [
        summary(live, "running", step=steps, reward=1.61),
        summary("run_2026-11-20_22-10-41", "finished", step=100, total_steps=100, reward=1.58, **over(18_000)),
        summary("run_2026-11-20_18-02-07", "crashed", step=12, total_steps=100, **over(32_000), error=crash),
        summary("run_2026-11-19_09-30-00", "stopped", step=40, total_steps=200, reward=1.12, **over(150_000)),
    ]  # fmt: skip
    client.sessions = [{"name": live, "run": live, "dead": False, "created": 0, "attached": 0}]
    return client


def token_box(client: FakeClient) -> None:
    """A box whose run kept the tokens of its newest step."""
    learning_box(client)
    client.files[f"training_runs/{RUN}/logs/tokens.jsonl"] = jsonl(token_lines(rollout_rows(87)))


def evaluated_box(client: FakeClient) -> None:
    """A box whose run lost problem 2 and gained problem 1 from step 10 to step 20."""
    learning_box(client)
    for step, right in ((10, (0, 2, 3)), (20, (0, 1, 3))):
        rows = [
            {
                "step": step, "index": index, "sample": 0, "question": f"What is {index} + 1?", "gold": str(index + 1),
                "completion": f"<think>at {step}</think><answer>{index + 1}</answer>", "length": 5, "truncated": False,
                "answer": str(index + 1), "correct": index in right, "flexible": True, "formatted": True,
                "reason": "ok" if index in right else "wrong", "score": None, "metrics": {}, "facts": {},
            }
            for index in range(4)
        ]  # fmt: skip
        client.files[f"eval_runs/{RUN}_addition/step_{step}_addition/completions.jsonl"] = jsonl(rows)


FACTS = {
    "cpu_percent": 14.0, "cpu_count": 26, "memory_used_mib": 62_464.0, "memory_total_mib": 1_048_576.0,
    "uptime_s": 33_120.0,
    "disks": [
        {"path": "/data", "what": "root", "used": 588e9, "total": 1000e9},
        {"path": "/", "what": "system", "used": 199e9, "total": 200e9},
    ],
}  # fmt: skip
SIZES = {
    "sizes": [
        {"run": RUN, "count": 12, "bytes": 120e9},
        {"run": "run_2026-11-20_22-10-41", "count": 4, "bytes": 40e9},
    ],
    "runs": 2, "checkpoints": 16, "bytes": 160e9, "day_bytes": 96e9, "unmeasured": 0,
}  # fmt: skip
SPARE = {
    "spare": [
        {"run": RUN, "step": step, "bytes": 10e9, "saved_at": "2026-11-18T08:00:00.000Z", "evaluated": ""}
        for step in (10, 20, 30)
    ],
    "more": 0, "problems": [],
}  # fmt: skip
GPUS = [
    {
        "index": 0, "name": "NVIDIA H200", "utilization_percent": 94.0, "memory_used_mib": 114_700.0,
        "memory_total_mib": 143_771.0, "power_w": 612.0, "temperature_c": 61.0, "free": False,
        "processes": [{"pid": 4242, "memory_mib": 114_000.0, "run": "run_gsm8k_demo"}],
    }
]  # fmt: skip
