"""The evaluating processes as seen by their parent: started, followed, ended. Torch-free."""

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

from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan
from grpo_train.evaluation.request import EvalError
from grpo_train.policy.device import check_device
from grpo_train.run_dir.files import atomic_write
from grpo_train.run_dir.gpus import GpuReadError, describe_problems, query_gpus
from grpo_train.run_dir.processes import PARENT_VARIABLE, RUN_ID_VARIABLE, run_id_in

Event = dict[str, Any]


@dataclass
class Worker:
    """One evaluating process and what it has reported."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: int
    deadline: float
    current: str
    """Name of the target in progress."""
    left: set[str]
    """Names of the targets it has neither finished nor failed."""
    rest: bytes = b""
    progress: dict[str, int] = field(default_factory=dict)


class WorkerPool:
    """``nproc`` processes over the same targets, each on its own device."""

    def __init__(self, plan: EvalPlan, run_id: str, nproc: int, timeout: float) -> None:
        """``run_id`` marks the processes in their environment; ``timeout`` is in seconds per target."""
        self._timeout = timeout
        # One evaluation at a time holds this tree, so a leftover plan may be replaced.
        self._plan_file = Path(plan.folder) / ".plan.json"
        atomic_write(self._plan_file, json.dumps(plan.to_json()))
        self._alive = [self._start(plan, run_id, rank, nproc) for rank in range(nproc)]
        self._workers = list(self._alive)

    def events(self, wait_s: float = 0.2) -> Iterator[tuple[Worker, Event]]:
        """Events of the next moment.

        ``{"event": "ended", "error", "code"}`` follows the last event of a process that ended too early or ran out of
        time.
        """
        for worker in [worker for worker in self._alive if time.monotonic() > worker.deadline]:
            error = f"timed out after {self._timeout:g} s (eval.timeout)"
            yield worker, {"event": "ended", "error": error, "code": "timeout"}
        ready, _, _ = select.select([worker.channel for worker in self._alive], [], [], wait_s)
        for worker in [worker for worker in self._alive if worker.channel in ready]:
            data = os.read(worker.channel, 65_536)
            if not data:
                self._alive.remove(worker)
                exit_code = worker.process.wait()
                if worker.left:
                    yield worker, {"event": "ended", **_failure(exit_code)}
                continue
            *lines, worker.rest = (worker.rest + data).split(b"\n")
            for event in map(json.loads, lines):
                if event["event"] == "started":
                    worker.current, worker.deadline = event["name"], time.monotonic() + self._timeout
                    worker.progress = {}
                elif event["event"] == "progress":
                    worker.progress = {"done": event["done"], "total": event["total"]}
                else:
                    worker.left.discard(event["name"])
                yield worker, event

    @property
    def is_alive(self) -> bool:
        """Whether any process may still report."""
        return bool(self._alive)

    def progress(self, name: str) -> dict[str, Any]:
        """Progress of a target over all processes: name, done, total (samples)."""
        found = [worker.progress for worker in self._workers if worker.current == name and worker.progress]
        return {"name": name, **{count: sum(each[count] for each in found) for count in ("done", "total")}}

    def end(self) -> None:
        """Kill the processes that are left, and clean up."""
        for worker in self._workers:
            if worker in self._alive:
                worker.process.kill()
            worker.process.wait()
            os.close(worker.channel)
        self._plan_file.unlink(missing_ok=True)

    def _start(self, plan: EvalPlan, run_id: str, rank: int, nproc: int) -> Worker:
        read_end, write_end = os.pipe()
        environment = {
            **os.environ,
            RUN_ID_VARIABLE: run_id,
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_WAIT_POLICY": "passive",
            "CUDA_VISIBLE_DEVICES": devices(os.environ, nproc)[rank],
        }
        if nproc > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // nproc)))
        arguments = [str(self._plan_file), str(write_end), str(rank), str(nproc)]
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo_train.evaluation.workers", *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(write_end,),
            env=environment,
            start_new_session=True,
        )
        os.close(write_end)
        names = [target.name for target in plan.targets]
        return Worker(rank, process, read_end, time.monotonic() + self._timeout, names[0], set(names))


def devices(environment: Mapping[str, str], nproc: int) -> list[str]:
    """The GPU of each process, an index or a UUID: the first visible ones; "" where GPUs are hidden.

    Raises EvalError if too few are visible.
    """
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is not None and not setting.strip():
        return [""] * nproc
    visible = [name.strip() for name in setting.split(",")] if setting else [str(index) for index in range(nproc)]
    if len(visible) < nproc:
        raise EvalError(f"eval.nproc {nproc}: CUDA_VISIBLE_DEVICES lists {len(visible)} device(s) ({setting})")
    return visible[:nproc]


def check_gpus(config: Config, environment: Mapping[str, str]) -> None:
    """Refuse GPUs that are missing, unusable by torch, or training a run. Raises EvalError, PolicyError.

    An evaluation started by a supervisor is checked only for their number: its run has passed the other checks, and
    its training process has ended.
    """
    nproc = config.eval.nproc
    wanted = list(filter(None, devices(environment, nproc)))
    try:
        gpus = query_gpus() if wanted else []
    except GpuReadError:
        gpus = []  # check_device says why
    if gpus and len(gpus) < nproc:
        raise EvalError(f"eval.nproc {nproc}: this machine has {len(gpus)} GPU(s)", code="no_gpu")
    if environment.get(RUN_ID_VARIABLE):
        return
    if wanted:
        check_device(config.model.device, nproc)
    for gpu in gpus:
        if not any(gpu.index == int(name) if name.isdigit() else gpu.uuid.startswith(name) for name in wanted):
            continue
        if gpu.problem and config.model.device != "cpu":
            raise EvalError(f"{describe_problems([gpu])}; select others with CUDA_VISIBLE_DEVICES", code="no_gpu")
        for run in filter(None, map(run_id_in, gpu.pids or ())):
            if Path(run).parent.name != "eval_runs":
                raise EvalError(
                    f"GPU {gpu.index} is training {run}: stop it first (grpo-train stop --training-run {run}), "
                    "or select another GPU with CUDA_VISIBLE_DEVICES",
                    code="busy",
                )


def _failure(exit_code: int) -> dict[str, str]:
    """Error and code of a process that ended too early."""
    if exit_code < 0:
        return {"error": f"was killed by {signal.Signals(-exit_code).name}", "code": "killed"}
    return {"error": f"ended with exit code {exit_code}", "code": "internal"}
