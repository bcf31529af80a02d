"""The parent of an evaluation: starts the evaluating child, watches it, and puts the tables together. Torch-free.

A step whose evaluation hangs or dies is ended and reported; a new child goes on with the steps that are left.
"""

from __future__ import annotations

import csv
import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from grpo_train.evaluation.plan import EvalError, EvalPlan, EvalRequest, Skipped, Target, announced, make_plan
from grpo_train.files import atomic_write, read_json, utc_now
from grpo_train.processes import PARENT_VARIABLE, RUN_ID_VARIABLE, become_subreaper, die_with_parent, sweep
from grpo_train.retention import is_there_to_stay
from grpo_train.run_dir import StatusWriter, prepare_root, remove_tree

__all__ = ["EvalError", "EvalRequest", "run_evaluation"]

COLUMNS = (
    "step", "name", "dataset", "status", "accuracy", "ci_low", "ci_high", "correct", "n", "format_rate",
    "truncated_rate", "mean_length", "subset_frac", "temperature", "max_completion_length", "batch_size", "seconds",
)  # fmt: skip
"""Columns of metrics.csv and consolidated_metrics.csv."""


def run_evaluation(root: Path, request: EvalRequest) -> int:
    """Evaluate as asked; returns an exit code. Raises EvalError, RunDirError, ConfigError.

    0: every step that was still there was evaluated; 1: one failed, or none was there any more; 130: it was stopped.
    """
    plan, skipped = make_plan(root, request)
    prepare_root(Path(plan.root))
    _refuse_training_gpu(plan.run)
    folder = Path(plan.folder)
    folder.mkdir(parents=True, exist_ok=True)
    status = StatusWriter(folder, training_run=plan.run, dataset=plan.label)
    evaluation = _Evaluation(plan, skipped, folder, status)
    try:
        return evaluation.run()
    finally:
        status.close()


class _Evaluation:
    def __init__(self, plan: EvalPlan, skipped: list[Skipped], folder: Path, status: StatusWriter) -> None:
        self._plan, self._folder, self._status = plan, folder, status
        self._failed = list(skipped)
        self._timeout = float(plan.config["eval"]["timeout"])
        self._stopped = False
        self._child: subprocess.Popen[bytes] | None = None
        # The supervisor's own evaluations carry its run's id, so that it finds them.
        self._run_id = os.environ.get(RUN_ID_VARIABLE) or f"eval_{folder.name}"

    def run(self) -> int:
        plan = self._plan
        become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if PARENT_VARIABLE in os.environ:  # a supervisor's own evaluation ends with it
            die_with_parent()
        for failure in self._failed:
            print(f"{failure.name}: cannot be evaluated: {failure.reason}", flush=True)
        self._status.update(
            state="evaluating",
            started_at=utc_now(),
            exit_code=None,
            targets=[t.name for t in plan.targets],
            pending=announced(plan, plan.targets),
            failures=[],
            skipped=[],
        )
        # Announced first, looked after: what a training run removed before it could know is left out.
        left = [target for target in plan.targets if self._is_there(target)]
        settings = {
            "training_run": plan.run,
            "dataset": plan.label,
            "problems": len(plan.indices),
            "task": plan.config["task"],
            "eval": plan.config["eval"],
            "max_completion_length": _budget(plan.config),
            "seed": plan.config["run"]["seed"],
        }
        atomic_write(self._folder / "eval_config.yaml", yaml.safe_dump(settings, sort_keys=False))
        while left and not self._stopped:
            done = self._run_child(replace(plan, targets=left))
            left = [target for target in left if target.name not in done]
        consolidate(self._folder, plan, self._failed)
        skipped, failures = (
            [{"name": f.name, "step": f.step, "reason": f.reason} for f in self._failed if f.vanished == vanished]
            for vanished in (True, False)
        )
        nothing = len(skipped) == len(plan.targets) > 0
        state = "stopped" if self._stopped else "crashed" if failures else "finished"
        code = 130 if self._stopped else 1 if failures or nothing else 0
        told = failures or (skipped if nothing else [])
        error = {"summary": f"{told[0]['name']}: {told[0]['reason']}"} if told else None
        self._status.update(
            state=state,
            exit_code=min(code, 1),
            failures=failures,
            skipped=skipped,
            error=error,
            progress=None,
            pending=[],
        )
        self._summarise()
        return code

    def _run_child(self, plan: EvalPlan) -> set[str]:
        """One child over the steps that are left; returns the names that are settled, evaluated or failed."""
        settled: set[str] = set()
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(plan.to_json(), file)
        read_end, write_end = os.pipe()
        environment = {
            **os.environ,
            RUN_ID_VARIABLE: self._run_id,
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_WAIT_POLICY": "passive",
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        }
        self._child = child = subprocess.Popen(
            [sys.executable, "-m", "grpo_train.evaluation.child", file.name, str(write_end)],
            stdin=subprocess.DEVNULL,
            pass_fds=(write_end,),
            env=environment,
            start_new_session=True,
        )
        os.close(write_end)
        current, deadline, rest = plan.targets[0].name, time.monotonic() + self._timeout, b""
        failure = ""
        beat = 0.0
        try:
            while True:
                if time.monotonic() > deadline:
                    failure = f"timed out after {self._timeout:g} s"
                    break
                if time.monotonic() > beat:
                    self._status.update()
                    beat = time.monotonic() + 2.0
                ready, _, _ = select.select([read_end], [], [], 0.2)
                if not ready:
                    if self._stopped:
                        break
                    continue
                data = os.read(read_end, 65_536)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    report = json.loads(line)
                    if report["event"] == "started":
                        current, deadline = report["name"], time.monotonic() + self._timeout
                    elif report["event"] == "progress":
                        progress = {"name": current, "done": report["done"], "total": report["total"]}
                        self._status.fields["progress"] = progress
                    elif report["event"] == "done":
                        settled.add(current)
                        self._release(plan, settled)
                        consolidate(self._folder, self._plan, self._failed)
                    elif report["event"] == "failed":
                        settled.add(current)
                        self._fail(current, report["reason"])
                        self._release(plan, settled)
        finally:
            os.close(read_end)
            if failure or self._stopped:
                child.kill()
            code = child.wait()
            if self._run_id.startswith("eval_"):
                sweep(self._run_id, exclude=frozenset({os.getpid()}))
            os.unlink(file.name)
            for half_written in (*self._folder.glob(".*.tmp"), *self._folder.glob(".*.old")):
                remove_tree(half_written)
        waiting = {target.name for target in plan.targets} - settled
        if self._stopped or not waiting:
            return settled
        if not failure:
            failure = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._fail(current, failure)
        self._release(plan, settled | {current})
        return settled | {current}

    def _release(self, plan: EvalPlan, settled: set[str]) -> None:
        """Say what is still to be read: a training run may remove the rest."""
        left = [target for target in plan.targets if target.name not in settled]
        self._status.update(pending=announced(plan, left) if left else [])

    def _is_there(self, target: Target) -> bool:
        """Whether a checkpoint is there; where it is not, that is noted."""
        if is_there_to_stay(Path(target.path)):
            return True
        reason = "it is gone: removed after it was asked for (by hand, or by run.keep_last of its training run)"
        self._note(Skipped(target.name, target.step, reason, vanished=True))
        return False

    def _fail(self, name: str, reason: str) -> None:
        target = next(target for target in self._plan.targets if target.name == name)
        if self._is_there(target):
            self._note(Skipped(name, target.step, reason))

    def _note(self, skipped: Skipped) -> None:
        self._failed.append(skipped)
        print(f"{skipped.name}: {skipped.status}", flush=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        print("stopping the evaluation; the steps that are done are kept", flush=True)
        self._stopped = True

    def _summarise(self) -> None:
        table = self._folder / "consolidated_metrics.csv"
        wanted = {target.name for target in self._plan.targets}
        for row in csv.DictReader(io.StringIO(table.read_text())):
            if row["name"] in wanted and row["status"] == "ok":
                print(
                    f"{row['name']}: accuracy {float(row['accuracy']):.4f} [{float(row['ci_low']):.4f}, "
                    f"{float(row['ci_high']):.4f}]  {row['correct']}/{row['n']}  {float(row['seconds']):.1f} s"
                )
        print(f"wrote {table}", flush=True)


def metrics_csv(rows: list[dict[str, Any]]) -> str:
    """Rows as CSV under :data:`COLUMNS`."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def consolidate(folder: Path, plan: EvalPlan, failed: list[Skipped]) -> None:
    """``consolidated_metrics.csv`` from every step's summary in the tree, and this evaluation's failures."""
    summaries = [read_json(path) for path in folder.glob(f"*_{plan.label}/summary.json")]
    rows = [summary["metrics"] for summary in summaries if summary]
    have = {row["name"] for row in rows}
    for failure in failed:
        if failure.name not in have:
            rows.append(
                {
                    "step": failure.step,
                    "name": failure.name,
                    "dataset": plan.label,
                    "status": failure.status,
                }
            )
    rows.sort(key=lambda row: (row["step"], row["name"]))
    atomic_write(folder / "consolidated_metrics.csv", metrics_csv(rows))


def _budget(config: dict[str, Any]) -> int:
    return int(config["eval"]["max_completion_length"] or config["rollout"]["max_completion_length"])


def _refuse_training_gpu(run: str) -> None:
    """Raise EvalError when the first visible GPU is training a run (a supervisor's own evaluation comes after)."""
    if os.environ.get(RUN_ID_VARIABLE):
        return
    try:
        query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        output = subprocess.run([*query, f"--id={visible}"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return
    for pid in filter(str.isdigit, output.split()):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in environment:
            if entry.startswith(RUN_ID_VARIABLE.encode() + b"=") and not entry.split(b"=", 1)[1].startswith(b"eval_"):
                owner = entry.split(b"=", 1)[1].decode()
                raise EvalError(
                    f"GPU {visible} is training {owner}: stop it first (grpo-train stop --training-run {owner}), "
                    "or choose another with CUDA_VISIBLE_DEVICES"
                )
