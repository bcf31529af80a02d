"""The parent of an evaluation: runs the evaluating processes, and assembles their samples into results. Torch-free.

If a step hangs or its process dies, the step is reported as failed and the processes are restarted for the remaining
steps. Samples are kept (:mod:`grpo_train.evaluation.results.partial`) until the step is complete.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from grpo_train.config.schema import Config
from grpo_train.evaluation.output import EvaluationOutput
from grpo_train.evaluation.plan import EvalPlan, each_task, evaluation_paths, plan_evaluation, problems_of, task_of
from grpo_train.evaluation.report.compare import Summary, stored_comparisons
from grpo_train.evaluation.report.match_table import match_lines
from grpo_train.evaluation.report.step import join_samples, step_facts, step_settings, write_step
from grpo_train.evaluation.report.table import consolidate
from grpo_train.evaluation.request import EvalRequest
from grpo_train.evaluation.results.keys import key_of
from grpo_train.evaluation.results.log import log_evaluation
from grpo_train.evaluation.results.partial import Partial
from grpo_train.evaluation.results.stored import (
    SUPERSEDED,
    aside_of,
    bring_back,
    is_complete,
    key_at,
    restore_torn,
    results_problem,
    set_aside,
)
from grpo_train.evaluation.targets import Target, Unfinished
from grpo_train.evaluation.workers.pool import WorkerPool, check_gpus
from grpo_train.run_dir import TABLE, RunDir, StatusWriter, prepare_root
from grpo_train.run_dir.display import fraction
from grpo_train.run_dir.errors import UserError, code_of, message_of
from grpo_train.run_dir.files import atomic_write, read_json, utc_now
from grpo_train.run_dir.keeping import exists_after_removal
from grpo_train.run_dir.processes import (
    PARENT_VARIABLE,
    RUN_ID_VARIABLE,
    become_subreaper,
    die_with_parent,
    kill_all,
    run_id_of,
)
from grpo_train.run_dir.signs import show_stacks_on_request, sign_of_life
from grpo_train.tasks import Problem, Task
from grpo_train.tasks.shared.base import equality_of
from grpo_train.tracking.gpu import sample_evaluation

HEARTBEAT_S = 2.0
INTERRUPTED = 130
"""Exit code of an evaluation that a signal stopped."""


@dataclass(frozen=True)
class EvaluationOutcome:
    """Outcome of one evaluation."""

    run: str
    dataset: str
    folder: str
    state: str
    """``finished``, ``stopped`` or ``crashed``."""
    exit_code: int
    """0: every step that still existed was evaluated; 1: a step failed, or none existed; 130: stopped."""
    steps: list[dict[str, Any]]
    """A row per requested step: the columns of the table, and for results ``seconds``, ``comparisons``, ``matches``."""


def run_evaluations(
    root: Path, requests: Sequence[EvalRequest], output: EvaluationOutput | None = None
) -> list[EvaluationOutcome]:
    """Run evaluations in order (of a mixture one per task): none if any is invalid, none after a stopped one.

    Raises EvalError, RunDirError, ConfigError, PolicyError.
    """
    outcomes = []
    wanted = [single for request in requests for single in each_task(root, request)]
    for plan, unusable in [plan_evaluation(root, request) for request in wanted]:
        outcomes.append(_evaluate(plan, unusable, output or EvaluationOutput()))
        if outcomes[-1].exit_code == INTERRUPTED:
            break
    return outcomes


def _evaluate(plan: EvalPlan, unusable: list[Unfinished], output: EvaluationOutput) -> EvaluationOutcome:
    prepare_root(Path(plan.root))
    check_gpus(Config.model_validate(plan.config), os.environ)
    folder = Path(plan.folder)
    folder.mkdir(parents=True, exist_ok=True)
    status = StatusWriter(folder, **plan.names)
    try:
        return EvaluationRunner(plan, unusable, status, output).run()
    except Exception as error:
        with suppress(OSError):  # the disk may be what failed
            summary = {"summary": message_of(error), "code": code_of(error)}
            status.update(state="crashed", exit_code=1, error=summary, progress=None, pending=[])
        raise
    finally:
        status.close()


class EvaluationRunner:
    """One evaluation from its plan to its tables."""

    def __init__(
        self, plan: EvalPlan, unusable: Sequence[Unfinished], status: StatusWriter, output: EvaluationOutput
    ) -> None:
        self._plan, self._status, self._output = plan, status, output
        self._folder = Path(plan.folder)
        self._failed = list(unusable)
        self._done: set[str] = set()
        """Names with complete results under the requested settings."""
        self._stopped = False
        # An evaluation started by a supervisor carries its run's ID, so that the supervisor finds it.
        self._run_id = os.environ.get(RUN_ID_VARIABLE) or run_id_of(self._folder)

    @cached_property
    def _config(self) -> Config:
        return Config.model_validate(self._plan.config)

    @cached_property
    def _task(self) -> Task:
        return task_of(self._config)

    @cached_property
    def _problems(self) -> list[Problem]:
        return problems_of(self._plan, self._config, self._task)

    @property
    def _samples(self) -> int:
        """Samples per step."""
        return len(self._plan.indices) * self._config.eval.num_samples

    def run(self) -> EvaluationOutcome:
        """Evaluate every target, and write the tables and the final status."""
        plan = self._plan
        become_subreaper()
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, self._on_signal)
        show_stacks_on_request()
        if PARENT_VARIABLE in os.environ:  # an evaluation started by a supervisor ends with it
            die_with_parent()
        for failure in self._failed:
            self._output.line(f"{failure.name}: cannot be evaluated: {failure.error}")
        restore_torn(self._folder)
        self._status.update(
            state="evaluating",
            started_at=utc_now(),
            exit_code=None,
            targets=[target.name for target in plan.targets],
            pending=evaluation_paths(plan, plan.targets),
            failures=[],
            skipped=[],
        )
        # Check after the announcement: training may have removed a checkpoint before it could see it.
        left = [target for target in plan.targets if self._exists(target)]
        atomic_write(self._folder / "eval_config.yaml", yaml.safe_dump(self._settings(), sort_keys=False))
        by_supervisor = PARENT_VARIABLE in os.environ  # which samples the GPUs itself
        interval = self._config.tracking.gpu_interval
        with nullcontext() if by_supervisor else sample_evaluation(self._folder, interval):
            while left and not self._stopped:
                settled = self._run_workers(replace(plan, targets=left))
                left = [target for target in left if target.name not in settled]
        return self._finish_run()

    def _settings(self) -> dict[str, Any]:
        """The content of eval_config.yaml."""
        plan = self._plan
        config = plan.config
        return {
            **plan.names,
            "problems": len(plan.indices),
            "task": config["task"],
            "eval": config["eval"],
            "max_completion_length": config["eval"]["max_completion_length"]
            or config["rollout"]["max_completion_length"],
            "seed": config["run"]["seed"],
        }

    def _finish_run(self) -> EvaluationOutcome:
        """Write the tables and the final status."""
        plan = self._plan
        unfinished = self._unfinished()
        summaries = consolidate(self._folder, plan.label, unfinished)
        skipped = [failure for failure in self._failed if failure.status == "skipped"]
        failures = [failure for failure in self._failed if failure.status != "skipped"]
        nothing_left = len(skipped) == len(plan.targets) > 0
        state = "stopped" if self._stopped else "crashed" if failures else "finished"
        exit_code = INTERRUPTED if self._stopped else 1 if failures or nothing_left else 0
        first = next(iter(failures or (skipped if nothing_left else [])), None)
        self._status.update(
            state=state,
            exit_code=min(exit_code, 1),
            failures=[_failure(failure) for failure in failures],
            skipped=[_failure(failure) for failure in skipped],
            error={"summary": f"{first.name}: {first.error}", "code": first.code} if first else None,
            progress=None,
            pending=[],
        )
        targets = {target.name: target for target in plan.targets if target.name in self._done}
        steps = []
        for summary in summaries:
            if target := targets.get(summary["metrics"]["name"]):
                steps.append(self._result_row(target, summary))
                self._print_result(steps[-1], summary)
        for each in unfinished:
            if each.status == "partial":
                self._output.line(f"{each.name}: incomplete: {each.done} of {each.total} samples done")
        self._output.line(f"wrote {self._folder / TABLE}")
        steps += [{"dataset": plan.label, **asdict(each)} for each in unfinished]
        steps.sort(key=lambda row: (row["step"], row["name"]))
        return EvaluationOutcome(plan.run, plan.label, plan.folder, state, exit_code, steps)

    # -------------------------------------------------------------------------------------------------- one round

    def _run_workers(self, plan: EvalPlan) -> set[str]:
        """One round of processes over the remaining steps; returns the names that are settled, done or failed.

        The round ends early when a process dies or hangs.
        """
        settled: set[str] = set()
        todo = [keyed for target in plan.targets if (keyed := self._prepare(target, settled))]
        self._release(plan, settled)
        if not todo:
            return settled
        plan = replace(plan, targets=todo)
        nproc = self._config.eval.nproc
        workers = WorkerPool(plan, self._run_id, nproc, self._config.eval.timeout)
        started = {todo[0].name: time.monotonic()}
        finished_by: dict[str, set[int]] = {target.name: set() for target in todo}
        samples_done: dict[tuple[int, str], int] = {}
        heartbeat = 0.0
        try:
            while workers.is_alive and not self._stopped:
                if time.monotonic() > heartbeat:
                    self._status.update()
                    heartbeat = time.monotonic() + HEARTBEAT_S
                for worker, event in workers.events():
                    name = str(event.get("name", worker.current))
                    is_new = event["event"] == "progress" and not event.get("stored")  # the model was not needed yet
                    sign_of_life("chunk" if is_new else event["event"])
                    if event["event"] == "started":
                        started.setdefault(name, time.monotonic())
                    elif event["event"] == "progress":
                        self._status.fields["progress"] = workers.progress(name)
                        samples_done[worker.rank, name] = event["done"]
                        self._output.progress(name, sum(samples_done.values()), len(todo) * self._samples)
                    elif event["event"] == "done":
                        finished_by[name].add(worker.rank)
                        if len(finished_by[name]) == nproc and name not in settled:
                            target = next(target for target in todo if target.name == name)
                            self._finish_step(target, time.monotonic() - started[name])
                            self._settle(plan, name, settled)
                    elif name not in settled:
                        self._fail(name, str(event["error"]), str(event["code"]))
                        self._settle(plan, name, settled)
                    if event["event"] == "ended":
                        return settled
        finally:
            workers.end()
            if self._run_id == run_id_of(self._folder):
                kill_all(self._run_id)
            restore_torn(self._folder)
        return settled

    def _prepare(self, target: Target, settled: set[str]) -> Target | None:
        """The target with its cache key and a directory for its samples; None if it is settled already."""
        try:
            key = key_of(self._plan, target, self._config, self._task, self._problems)
        except (UserError, OSError) as error:  # a checkpoint that is removed while it is hashed
            self._fail(target.name, message_of(error), code_of(error))
            settled.add(target.name)
            return None
        final = self._plan.result_folder(target)
        problem = results_problem(final)
        if problem:
            self._output.line(f"{target.name}: evaluating again: {problem}")
        if is_complete(final, key) or self._bring_back(final, key):
            self._output.line(f"{target.name}: already complete, nothing changed")
            settled.add(target.name)
            self._done.add(target.name)
            return None
        earlier = key_at(final)
        same_samples = earlier is not None and earlier.get("samples") == key["samples"]
        if earlier and not same_samples:
            self._output.line(f"{target.name}: keeping results of other settings in {self._folder / SUPERSEDED}")
        partial = Partial.beside(final)
        if partial.open(key) and (done := len(partial.completions())):
            self._output.line(f"{target.name}: resuming: {done} of {self._samples} samples done")
        elif same_samples and not problem:
            # Only the grader has changed, or failed.
            self._output.line(f"{target.name}: judging {partial.adopt(final)} stored completions again")
        return replace(target, key=key)

    def _bring_back(self, final: Path, key: dict[str, Any]) -> bool:
        """Restore complete results of this key that were set aside, setting the current ones aside; False if none."""
        if not is_complete(aside_of(final, key), key):
            return False
        if (earlier := key_at(final)) is not None:
            set_aside(final, earlier)
        return bring_back(final, key)

    def _finish_step(self, target: Target, seconds: float) -> None:
        """Write a step's files and the tables, once every process has finished its share."""
        final = self._plan.result_folder(target)
        partial = Partial.beside(final)
        layout = partial.layout() or {}
        samples = self._config.eval.num_samples
        try:
            rows = join_samples(target.step, self._problems, samples, partial.completions(), partial.verdicts())
        except KeyError as error:  # a disk that lost what was written to it
            self._fail(target.name, f"sample {error} is missing in {partial.path}", "internal")
            return
        timing = {"seconds": round(seconds, 3), "finished_at": utc_now(), "processes": self._config.eval.nproc}
        settings = step_settings(self._plan, target, self._config, self._task, layout)
        facts = step_facts(self._plan, target, self._config, self._task, layout)
        metrics = write_step(final, rows, settings, target.key, facts, timing, equality_of(self._task))
        partial.remove()
        self._done.add(target.name)
        consolidate(self._folder, self._plan.label, self._unfinished())
        run = RunDir(Path(self._plan.root) / "training_runs" / self._plan.run)
        log_evaluation(run, self._task, metrics, target.key, tensorboard=self._config.tracking.tensorboard)

    def _settle(self, plan: EvalPlan, name: str, settled: set[str]) -> None:
        settled.add(name)
        self._release(plan, settled)

    def _release(self, plan: EvalPlan, settled: set[str]) -> None:
        """Announce the paths still in use: training may remove the others."""
        left = [target for target in plan.targets if target.name not in settled]
        self._status.update(pending=evaluation_paths(plan, left) if left else [])

    # --------------------------------------------------------------------------------------------------- failures

    def _exists(self, target: Target) -> bool:
        """Whether a checkpoint exists; a missing one is recorded as skipped."""
        if exists_after_removal(Path(target.path)):
            return True
        error = "removed after it was requested (manually, or by run.keep_last of its training run)"
        self._record(Unfinished(target.name, target.step, "skipped", error, "no_checkpoint"))
        return False

    def _fail(self, name: str, error: str, code: str) -> None:
        target = next(target for target in self._plan.targets if target.name == name)
        if self._exists(target):
            self._record(Unfinished(name, target.step, "failed", error, code))

    def _record(self, failure: Unfinished) -> None:
        self._failed.append(failure)
        self._output.line(f"{failure.name}: {failure.status}: {failure.error}")

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self._stopped = True
        self._output.line("stopping the evaluation; completed steps are kept, rerun the command to continue the others")

    # ---------------------------------------------------------------------------------------------------- results

    def _unfinished(self) -> list[Unfinished]:
        """The requested steps without results so far: failed, skipped or partial."""
        failed = {failure.name for failure in self._failed}
        found = list(self._failed)
        for target in self._plan.targets:
            if target.name not in failed | self._done:
                done = len(Partial.beside(self._plan.result_folder(target)).completions())
                found.append(Unfinished(target.name, target.step, "partial", done=done, total=self._samples))
        return found

    def _result_row(self, target: Target, summary: Summary) -> dict[str, Any]:
        timing = read_json(self._plan.result_folder(target) / "timing.json") or {}
        metrics = summary["metrics"]
        return {
            **metrics,
            "done": metrics["n"],
            "total": metrics["n"],
            "seconds": timing.get("seconds", 0.0),
            "comparisons": [asdict(comparison) for comparison in stored_comparisons(summary)],
            "matches": summary.get("matches", []),
        }

    def _print_result(self, row: Mapping[str, Any], summary: Summary) -> None:
        self._output.line(
            f"{row['name']}: accuracy {fraction(row['accuracy'])} "
            f"[{fraction(row['ci_low'])}, {fraction(row['ci_high'])}]  "
            f"{row['correct']}/{row['n']}  {row['seconds']:.1f} s"
        )
        comparisons = [comparison.text() for comparison in stored_comparisons(summary)]
        for line in [*match_lines(row["matches"]), *comparisons]:
            self._output.line(f"  {line}")


def _failure(failure: Unfinished) -> dict[str, Any]:
    """A failure as status.json lists it."""
    return {name: getattr(failure, name) for name in ("name", "step", "error", "code")}
