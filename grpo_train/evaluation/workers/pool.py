"""The evaluating processes, seen from their parent: started, listened to, ended. Torch-free."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_train.evaluation.plan import EvalError, EvalPlan
from grpo_train.run_dir.files import atomic_write
from grpo_train.run_dir.processes import PARENT_VARIABLE, RUN_ID_VARIABLE, run_id_in

Event = dict[str, Any]


@dataclass
class Child:
    """One process and what it was heard to say."""

    number: int
    process: subprocess.Popen[bytes]
    channel: int
    deadline: float
    current: str
    """The target it is at."""
    left: set[str]
    """Targets it has not settled yet."""
    rest: bytes = b""
    progress: dict[str, int] = field(default_factory=dict)


class Children:
    """``nproc`` processes over the same targets, each with a device of its own."""

    def __init__(self, plan: EvalPlan, run_id: str, nproc: int, timeout: float) -> None:
        """``run_id``: what they carry in their environment, so that they are found. ``timeout``: seconds per target."""
        self._timeout = timeout
        # In the tree, which one evaluation holds at a time: what a killed one left is replaced.
        self._plan_file = Path(plan.folder) / ".plan.json"
        atomic_write(self._plan_file, json.dumps(plan.to_json()))
        self._alive = [self._start(plan, run_id, number, nproc) for number in range(nproc)]
        self.all = list(self._alive)

    def events(self, wait_s: float = 0.2) -> Iterator[tuple[Child, Event]]:
        """What was said within the next moment. A process that has ended says ``{"event": "ended", "reason": …}``,
        where it ended too early; one that took too long is told of in the same way.
        """
        late = [child for child in self._alive if time.monotonic() > child.deadline]
        for child in late:
            yield child, {"event": "ended", "reason": f"timed out after {self._timeout:g} s (eval.timeout)"}
        ready, _, _ = select.select([child.channel for child in self._alive], [], [], wait_s)
        for child in [child for child in self._alive if child.channel in ready]:
            data = os.read(child.channel, 65_536)
            if not data:
                self._alive.remove(child)
                code = child.process.wait()
                if child.left:
                    yield child, {"event": "ended", "reason": _ending(code)}
                continue
            *lines, child.rest = (child.rest + data).split(b"\n")
            for event in map(json.loads, lines):
                if event["event"] == "started":
                    child.current, child.deadline = event["name"], time.monotonic() + self._timeout
                    child.progress = {}
                elif event["event"] == "progress":
                    child.progress = {"done": event["done"], "total": event["total"]}
                else:
                    child.left.discard(event["name"])
                yield child, event

    @property
    def are_there(self) -> bool:
        """Whether any of them may still say something."""
        return bool(self._alive)

    def progress(self, name: str) -> dict[str, Any]:
        """How far a target is, over all of them."""
        found = [child.progress for child in self.all if child.current == name and child.progress]
        return {"name": name, **{word: sum(each[word] for each in found) for word in ("done", "total")}}

    def end(self) -> None:
        """Kill what is left and clear away."""
        for child in self.all:
            if child in self._alive:
                child.process.kill()
            child.process.wait()
            os.close(child.channel)
        self._plan_file.unlink(missing_ok=True)

    def _start(self, plan: EvalPlan, run_id: str, number: int, nproc: int) -> Child:
        read_end, write_end = os.pipe()
        environment = {
            **os.environ,
            RUN_ID_VARIABLE: run_id,
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_WAIT_POLICY": "passive",
            "CUDA_VISIBLE_DEVICES": devices(os.environ, nproc)[number],
        }
        if nproc > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // nproc)))
        words = [str(self._plan_file), str(write_end), str(number), str(nproc)]
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo_train.evaluation.workers.worker", *words],
            stdin=subprocess.DEVNULL,
            pass_fds=(write_end,),
            env=environment,
            start_new_session=True,
        )
        os.close(write_end)
        names = [target.name for target in plan.targets]
        return Child(number, process, read_end, time.monotonic() + self._timeout, names[0], set(names))


def devices(environment: Mapping[str, str], nproc: int) -> list[str]:
    """The GPU of each process: the first visible ones. Raises EvalError where fewer are visible."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    visible = [name.strip() for name in listed.split(",")] if listed else [str(number) for number in range(nproc)]
    if len(visible) < nproc:
        raise EvalError(f"eval.nproc {nproc}: CUDA_VISIBLE_DEVICES names {len(visible)} device(s) ({listed})")
    return visible[:nproc]


def refuse_busy(environment: Mapping[str, str], nproc: int) -> None:
    """Raise EvalError when a GPU is not there, or is training a run (a supervisor's own evaluation comes after)."""
    wanted = devices(environment, nproc)
    there = _nvidia_smi("--query-gpu=index")
    if there is not None and len(there) < nproc:
        raise EvalError(f"eval.nproc {nproc}: this machine has {len(there)} GPU(s)")
    if environment.get(RUN_ID_VARIABLE):
        return
    for device in wanted:
        for pid in filter(str.isdigit, _nvidia_smi("--query-compute-apps=pid", f"--id={device}") or []):
            owner = run_id_in(int(pid))
            if owner and Path(owner).parent.name != "eval_runs":
                raise EvalError(
                    f"GPU {device} is training {owner}: stop it first (grpo-train stop --training-run {owner}), "
                    "or choose another with CUDA_VISIBLE_DEVICES"
                )


def _nvidia_smi(*query: str) -> list[str] | None:
    """A query's answer in words, or None where there is no GPU."""
    command = ["nvidia-smi", *query, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split() if done.returncode == 0 else None


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
