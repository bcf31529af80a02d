"""A scripted client: the interface of ``remote.client.BoxClient`` without a box."""

from __future__ import annotations

import math
import random
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timezone
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from grpo_train.run_dir.files import to_json
from remote.boxes import Box
from remote.events import BoxGreeted, Link, LinkChanged, LogArrived
from remote.index.answers import Answers
from remote.intake import reply, topic_event
from remote.protocol import OPERATIONS, Cursor, RemoteError
from remote.protocol.intake import read_request
from tests.tui.fake_ask import ASK_ANSWERS
from tests.tui.fake_backups import BACKUP_ANSWERS

NOW = 1_795_000_000.0
"""The time of the tests' clock, which does not move."""
RUN = "run_gsm8k_demo"
LOGS = f"training_runs/{RUN}/logs"
TASKS = {"addition": "sums", "gsm8k": "school", "gsm8k_r1_template": "school", "mbpp": "programs"}


def at(seconds_ago: float) -> str:
    moment = datetime.fromtimestamp(NOW - seconds_ago, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def train_rows(steps: int, seed: int = 0, last_age: float = 2.0, nan_at: int | None = None) -> list[dict[str, Any]]:
    """Rows of train_log.jsonl of a run that learns."""
    dice = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        share = 1 - math.exp(-step / (0.4 * max(steps, 60)))
        rows.append(
            {
                "step": step,
                "time": at(last_age + 3.1 * (steps - step)),
                "loss": math.nan if step == nan_at else dice.gauss(-0.004, 0.006),
                "reward": 0.9 + 0.85 * share + dice.gauss(0, 0.07),
                "reward_std": 0.6 - 0.3 * share,
                "frac_reward_zero_std": min(1.0, 0.1 + 0.5 * share + abs(dice.gauss(0, 0.05))),
                "completions/mean_length": 64 - 18 * share + dice.gauss(0, 1.5),
                "completions/clipped_ratio": 0.02,
                "entropy": 0.4 - 0.25 * share + dice.gauss(0, 0.01),
                "grad_norm": 0.18 + abs(dice.gauss(0, 0.06)) + (1.4 if step == 41 else 0),
                "learning_rate": 1e-4,
                "time/rollout": 1.9,
                "time/train": 1.0,
                "time/save": 0.05,
                "time/step": 3.1,
            }
        )
    return rows


Record = dict[str, Any]


def no_signal(share: float) -> Record:
    """The warning of a step whose groups are mostly equal."""
    message = f"{share:.0%} of groups carry no signal ({share:.0%} all correct)"
    return {"code": "no_signal", "level": "warning", "message": message, "share": share}


def off_policy(ess: float) -> Record:
    """The warning of a step whose samples are off-policy."""
    message = f"effective sample size {ess:.0%} of the completions: samples are off-policy"
    return {"code": "off_policy", "level": "warning", "message": message, "ess": ess}


NEAR_ZERO: Record = {
    "code": "loss_near_zero", "level": "info", "message": "a loss near zero is expected on-policy; watch the reward",
}  # fmt: skip


def batch_advice(scale: float) -> Record:
    """The advice of a step with a measured noise scale."""
    message = (
        f"The gradient noise scale recommends about {scale:.0f} prompt groups ({8 * scale:.0f} completions) per step "
        "(95 % interval 131 to 402); the current 8 prompt groups (64 completions) are far below it: "
        "a larger batch would need far fewer steps."
    )
    return {"code": "batch_size", "level": "info", "message": message, "scale": scale}


def healthy(row: dict[str, Any], *records: Record) -> dict[str, Any]:
    """A row with health records and the metrics behind them."""
    return {
        **row, "groups/all_correct": 0.5, "groups/all_wrong": 0.0, "groups/all_equal": 0.03125, "ess/token": 0.9987,
        "ess/sequence": 0.4412, "ess/token_clipped": 0.9989, "ess/sequence_clipped": 0.52, "clip_ratio/low_mean": 0.001,
        "clip_ratio/high_mean": 0.0, "mismatch/kl": 0.00018, "mismatch/outside_0.9_1.1": 0.004,
        "gns/b_simple": 212.4, "gns/b_simple_low": math.nan, "gns/b_simple_high": math.nan,
        "gns/b_simple_completions": 1699.0, "time/score": 0.4, "health": list(records),
    }  # fmt: skip


def ailing_rows(steps: int) -> list[dict[str, Any]]:
    """Off-policy in steps 30 to 32, most groups equal from step 60 on; the numbers move."""
    rows = []
    for row in train_rows(steps):
        step, records = row["step"], []
        if 30 <= step < 33:
            records.append(off_policy(0.4 + step / 1000))
        if step >= 60:
            records.append(no_signal(0.4 + step / 500))
        records.append(NEAR_ZERO)
        if step >= 10:
            records.append(batch_advice(200 + step / 7))
        rows.append(healthy(row, *records))
    return rows


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


def rollout_rows(step: int, count: int = 8) -> list[dict[str, Any]]:
    dice = random.Random(step)
    rows = []
    for sample in range(count):
        a, b = dice.randint(10, 99), dice.randint(10, 99)
        right = dice.random() < 0.7 or sample == count - 1
        answer = a + b if right else a + b + dice.choice((-10, 1, 10))
        rows.append(
            {
                "step": step,
                "time": at(2.0),
                "group": sample // 4,
                "sample": sample % 4,
                "prompt": f"Add the numbers. Think inside <think></think>, then answer.\nWhat is {a} + {b}?\n",
                "completion": f"<think>{a % 10} + {b % 10} = {a % 10 + b % 10}, "
                f"{a // 10} + {b // 10} = {a // 10 + b // 10}"
                f"{', carry 1' if a % 10 + b % 10 > 9 else ''}</think>\n<answer>{answer}</answer>",
                "reward": 2.0 if right else 0.0,
                "gold": str(a + b),
            }
        )
    return rows


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(to_json(row) + "\n" for row in rows).encode()


def summary(run: str, state: str, **more: Any) -> dict[str, Any]:
    row = {
        "run": run, "state": state, "host": "", "layout": "run", "step": 0, "total_steps": 200, "reward": None,
        "step_seconds": 3.1, "logged_at": at(2), "started_at": at(600), "updated_at": at(2), "run_seconds": 600.0,
        "stage": "train", "exit_code": None, "error": None, "restarts": 0, "nproc": 2, "stop_asked": False,
    }  # fmt: skip
    return {**row, **more}


class Index:
    """The index of a box, over the files of a client."""

    def __init__(self) -> None:
        root = Path(mkdtemp(prefix="grpo-index-"))
        weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self._root, cache = root / "root", root / "cache"
        cache.mkdir(mode=0o700)
        self._answers = Answers([cache])

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

    def request(self, op: str, timeout: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
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
    steps = [10, 20, 30]
    scores = {10: 0.57, 20: 0.71, 30: 0.83}
    return {
        "run": run,
        "layout": "run",
        "path": f"/data/training_runs/{run}",
        "summary": {},
        "status": {},
        "launch": {},
        "events": [],
        "superseded": {},
        "config_text": "run: {total_steps: 200}\nmodel: {backbone: tiny}\ntask: {name: addition}\n",
        "checkpoints": [
            {"step": step, "problem": "", "path": f"training_runs/{run}/training_state/step_{step}"} for step in steps
        ],
        "evaluations": [
            {
                "name": f"{run}_addition",
                "state": "finished",
                "metrics": [
                    {
                        "step": str(step),
                        "status": "ok",
                        "accuracy": str(scores[step]),
                        "ci_low": str(scores[step] - 0.03),
                        "ci_high": str(scores[step] + 0.03),
                    }
                    for step in (10, 20)
                ],
            }
        ],
    }


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
    "series",
    "metrics",
    "show_step",
    "rollout_steps",
    "rollout_step",
    "samples",
    "search_rollouts",
    "log_files",
    "read_log",
    "search_log",
    "log_bytes",
    "gpu_history",
)


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
        "safe": True,
        "kept": "backup",
        "obstacles": [],
        "count": 0,
        "whole": True,
        "age_s": 0.0,
        "again_s": 10.0,
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
}


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
        "memory_total_mib": 143_771.0, "power_w": 612.0, "temperature_c": 61.0,
        "processes": [{"pid": 4242, "memory_mib": 114_000.0, "run": "run_gsm8k_demo"}],
    }
]  # fmt: skip
