"""The parent of an evaluation: starts the evaluating processes, watches them, puts their samples together. Torch-free.

A step whose evaluation hangs or dies is ended and reported; the processes are started anew for the steps that are left.
What was generated stays beside the results (:mod:`.partial`) until the step is complete.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import (
    EvalError,
    EvalPlan,
    EvalRequest,
    Skipped,
    Target,
    announced,
    make_plan,
    problems_of,
    task_of,
)
from grpo_train.evaluation.report.compare import words
from grpo_train.evaluation.report.files import (
    TABLE,
    consolidate,
    facts_of,
    is_complete,
    join,
    key_at,
    settings_of,
    write_step,
)
from grpo_train.evaluation.report.match_table import match_lines
from grpo_train.evaluation.results.keys import key_of
from grpo_train.evaluation.results.log import log_evaluation
from grpo_train.evaluation.results.partial import Partial
from grpo_train.evaluation.results.stored import SUPERSEDED, aside_of, bring_back, problem_of, restore_torn, set_aside
from grpo_train.evaluation.workers.pool import Children, refuse_busy
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir import RunDir, StatusWriter, prepare_root, read_table
from grpo_train.run_dir.files import atomic_write, read_json, utc_now
from grpo_train.run_dir.processes import (
    PARENT_VARIABLE,
    RUN_ID_VARIABLE,
    become_subreaper,
    die_with_parent,
    kill_all,
    run_id_of,
)
from grpo_train.run_dir.removal import exists_after_removal
from grpo_train.sandbox import SandboxError
from grpo_train.tasks import Problem, Task

__all__ = ["EvalError", "EvalRequest", "run_evaluation", "run_evaluations"]

HEARTBEAT_S = 2.0


def run_evaluation(root: Path, request: EvalRequest) -> int:
    """Evaluate as asked; returns an exit code. Raises EvalError, RunDirError, ConfigError.

    0: every step that was still there was evaluated; 1: one failed, or none was there any more; 130: it was stopped.
    """
    return _evaluate(*make_plan(root, request))


def run_evaluations(root: Path, requests: Sequence[EvalRequest]) -> int:
    """Several evaluations one after the other, nothing begun where one is refused; returns the worst exit code."""
    worst = 0
    for plan, skipped in [make_plan(root, request) for request in requests]:
        code = _evaluate(plan, skipped)
        worst = max(worst, code)
        if code == 130:
            break
    return worst


def _evaluate(plan: EvalPlan, skipped: list[Skipped]) -> int:
    prepare_root(Path(plan.root))
    refuse_busy(os.environ, int(plan.config["eval"].get("nproc", 1)))
    folder = Path(plan.folder)
    folder.mkdir(parents=True, exist_ok=True)
    status = StatusWriter(folder, training_run=plan.run, dataset=plan.label)
    evaluation = _Evaluation(plan, skipped, folder, status)
    try:
        return evaluation.run()
    except Exception as error:
        with suppress(OSError):  # the disk may be what failed
            told = str(error) or type(error).__name__
            status.update(state="crashed", exit_code=1, error={"summary": told}, progress=None, pending=[])
        raise
    finally:
        status.close()


def say(text: str) -> None:
    """Print it. Where nobody listens any more (a closed terminal, a pipe to head) the evaluation goes on."""
    with suppress(OSError):
        print(text, flush=True)


class _Evaluation:
    def __init__(self, plan: EvalPlan, skipped: list[Skipped], folder: Path, status: StatusWriter) -> None:
        self._plan, self._folder, self._status = plan, folder, status
        self._failed = list(skipped)
        self._done: set[str] = set()
        """Names whose results are there, under the settings that were asked for."""
        self._stopped = False
        # The supervisor's own evaluations carry its run's id, so that it finds them.
        self._run_id = os.environ.get(RUN_ID_VARIABLE) or run_id_of(folder)

    @cached_property
    def _config(self) -> Config:
        return Config.model_validate(self._plan.config)

    @cached_property
    def _task(self) -> Task:
        return task_of(self._config)

    @cached_property
    def _problems(self) -> list[Problem]:
        return problems_of(self._plan, self._config, self._task)

    def run(self) -> int:
        plan = self._plan
        become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if PARENT_VARIABLE in os.environ:  # a supervisor's own evaluation ends with it
            die_with_parent()
        for failure in self._failed:
            say(f"{failure.name}: cannot be evaluated: {failure.reason}")
        restore_torn(self._folder)
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
        self._consolidate()
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

    # one round ---------------------------------------------------------------------------------------------------

    def _run_child(self, plan: EvalPlan) -> set[str]:
        """One round of processes over the steps that are left; returns the names that are settled, done or failed."""
        settled: set[str] = set()
        todo = [keyed for target in plan.targets if (keyed := self._prepare(target, settled))]
        self._release(plan, settled)
        if not todo:
            return settled
        plan = replace(plan, targets=todo)
        nproc = self._config.eval.nproc
        children = Children(plan, self._run_id, nproc, self._config.eval.timeout)
        began = {target.name: time.monotonic() for target in todo[:1]}
        finished_by: dict[str, set[int]] = {target.name: set() for target in todo}
        beat = 0.0
        try:
            while children.are_there and not self._stopped:
                if time.monotonic() > beat:
                    self._status.update()
                    beat = time.monotonic() + HEARTBEAT_S
                for child, event in children.events():
                    name = str(event.get("name", child.current))
                    if event["event"] == "started":
                        began.setdefault(name, time.monotonic())
                    elif event["event"] == "progress":
                        self._status.fields["progress"] = children.progress(name)
                    elif event["event"] == "done":
                        finished_by[name].add(child.number)
                        if len(finished_by[name]) == nproc and name not in settled:
                            target = next(target for target in todo if target.name == name)
                            self._finish(target, time.monotonic() - began[name])
                            self._settle(plan, name, settled)
                    elif name not in settled:
                        self._fail(name, str(event["reason"]))
                        self._settle(plan, name, settled)
                    if event["event"] == "ended":
                        return settled
        finally:
            children.end()
            if self._run_id == run_id_of(self._folder):
                kill_all(self._run_id, exclude=frozenset({os.getpid()}))
            restore_torn(self._folder)
        return settled

    def _prepare(self, target: Target, settled: set[str]) -> Target | None:
        """The target with its key, a place for its samples made; None where nothing is to be done, or can be."""
        try:
            key = key_of(self._plan, target, self._config, self._task, self._problems)
        except (PolicyError, SandboxError, OSError) as error:
            self._fail(target.name, str(error))
            settled.add(target.name)
            return None
        final = self._plan.final(target)
        if problem := problem_of(final):
            say(f"{target.name}: is evaluated again: {problem}")
        if is_complete(final, key) or self._bring_back(final, key):
            say(f"{target.name}: is complete already, nothing of it changed")
            settled.add(target.name)
            self._done.add(target.name)
            return None
        earlier = key_at(final)
        if earlier and earlier.get("samples") != key["samples"]:
            say(f"{target.name}: its results under other settings will be kept in {self._folder / SUPERSEDED}")
        partial = Partial.beside(final)
        if partial.open(key) and (have := len(partial.completions())):
            say(f"{target.name}: goes on with {have} of {self._samples} samples that are there")
        return replace(target, key=key)

    def _bring_back(self, final: Path, key: dict[str, Any]) -> bool:
        """Whether complete results of this key had been set aside and are back, those that were there set aside."""
        aside = aside_of(final, key)
        if aside is None or not is_complete(aside, key):
            return False
        if (earlier := key_at(final)) is not None:
            set_aside(final, earlier)
        return bring_back(final, key)

    def _finish(self, target: Target, seconds: float) -> None:
        """Every process has done its share: the step's files, and the tables."""
        partial = Partial.beside(self._plan.final(target))
        layout = partial.layout() or {}
        samples = self._config.eval.num_samples
        try:
            rows = join(target.step, self._problems, samples, partial.completions(), partial.verdicts())
        except KeyError as error:
            self._fail(target.name, f"sample {error} is missing in {partial.path}")
            return
        timing = {"seconds": round(seconds, 3), "finished_at": utc_now(), "processes": self._config.eval.nproc}
        settings = settings_of(self._plan, target, self._config, self._task, layout)
        facts = facts_of(self._plan, target, self._config, self._task, layout)
        metrics = write_step(self._plan.final(target), rows, settings, target.key, facts, timing)
        partial.remove()
        self._done.add(target.name)
        self._consolidate()
        run = RunDir(Path(self._plan.root) / "training_runs" / self._plan.run)
        log_evaluation(run, self._task, metrics, target.key, board=self._config.tracking.tensorboard)

    def _settle(self, plan: EvalPlan, name: str, settled: set[str]) -> None:
        settled.add(name)
        self._release(plan, settled)

    def _release(self, plan: EvalPlan, settled: set[str]) -> None:
        """Say what is still to be read: a training run may remove the rest."""
        left = [target for target in plan.targets if target.name not in settled]
        self._status.update(pending=announced(plan, left) if left else [])

    # what went wrong ---------------------------------------------------------------------------------------------

    def _is_there(self, target: Target) -> bool:
        """Whether a checkpoint is there; where it is not, that is noted."""
        if exists_after_removal(Path(target.path)):
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
        say(f"{skipped.name}: {skipped.status}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        say("stopping the evaluation; the steps that are done are kept, the others go on when it is run again")

    # words -------------------------------------------------------------------------------------------------------

    @property
    def _samples(self) -> int:
        return len(self._plan.indices) * self._config.eval.num_samples

    def _consolidate(self) -> None:
        """The table: every result, what failed, and what was begun and how far it is."""
        without = {failure.name: (failure.step, failure.status) for failure in self._failed}
        for target in self._plan.targets:
            partial = Partial.beside(self._plan.final(target))
            if target.name not in without and partial.path.is_dir():
                told = f"partial: {len(partial.completions())} of {self._samples} samples"
                without[target.name] = (target.step, told)
        consolidate(self._folder, self._plan.label, without)

    def _summarise(self) -> None:
        wanted = {target.name: target for target in self._plan.targets if target.name in self._done}
        for row in read_table(self._folder):
            if row["name"] not in wanted or row["status"] != "ok":
                continue
            folder = self._plan.final(wanted[row["name"]])
            seconds = (read_json(folder / "timing.json") or {}).get("seconds", 0.0)
            say(
                f"{row['name']}: accuracy {float(row['accuracy']):.4f} [{float(row['ci_low']):.4f}, "
                f"{float(row['ci_high']):.4f}]  {row['correct']}/{row['n']}  {seconds:.1f} s"
            )
            summary = read_json(folder / "summary.json") or {}
            told = match_lines(summary.get("matches", []))
            for line in [*told, *dict.fromkeys(filter(None, (words(summary, word) for word in ("previous", "base"))))]:
                say(f"  {line}")
        said = {*self._done, *(failure.name for failure in self._failed)}
        for target in self._plan.targets:
            if target.name not in said:
                have = len(Partial.beside(self._plan.final(target)).completions())
                say(f"{target.name}: is not done: {have} of {self._samples} samples are there")
        say(f"wrote {self._folder / TABLE}")


def _budget(config: dict[str, Any]) -> int:
    return int(config["eval"]["max_completion_length"] or config["rollout"]["max_completion_length"])
