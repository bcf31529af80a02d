"""An evaluating process: generates and judges its share of every target's samples.

:mod:`grpo_train.evaluation.workers.pool` starts ``python -m grpo_train.evaluation.workers PLAN_FILE CHANNEL RANK
NPROC``; events go to the descriptor CHANNEL as JSON lines. Processes share only the plan and the directory of
unfinished samples: each takes every NPROC-th chunk, and none waits for another.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from grpo_train.config.schema import Config
from grpo_train.evaluation.judging import Judges, settled
from grpo_train.evaluation.plan import EvalPlan, problems_of, task_of
from grpo_train.evaluation.results.partial import Partial, PartialWriter
from grpo_train.evaluation.targets import Target
from grpo_train.evaluation.workers.checkpoint import SampleSource
from grpo_train.evaluation.workers.matches import MatchSource
from grpo_train.evaluation.workers.single_turn import SingleTurnSource
from grpo_train.run_dir.errors import UserError, code_of, disk_error, message_of
from grpo_train.run_dir.processes import die_with_parent
from grpo_train.run_dir.signs import show_stacks_on_request
from grpo_train.tasks import Problem, Task
from grpo_train.tasks.shared.self_play import SelfPlayTask

Report = Callable[..., None]
"""``report(event, **fields)`` sends an event to the parent."""


def main() -> int:
    """Evaluate every target of the plan; a failing target is reported, and the next one starts."""
    die_with_parent()
    show_stacks_on_request()
    plan = EvalPlan.from_json(json.loads(Path(sys.argv[1]).read_text()))
    channel, rank, nproc = (int(argument) for argument in sys.argv[2:5])

    def report(event: str, **fields: Any) -> None:
        os.write(channel, (json.dumps({"event": event, **fields}) + "\n").encode())

    config = Config.model_validate(plan.config)
    task = task_of(config)
    problems = problems_of(plan, config, task)
    for target in plan.targets:
        report("started", name=target.name)
        try:
            evaluate_target(target, plan, config, task, problems, report, rank, nproc)
            report("done", name=target.name)
        except Exception as error:  # one step must not cost the others
            if not isinstance(error, UserError) and not disk_error(error):
                traceback.print_exc()
            report("failed", name=target.name, error=message_of(error), code=code_of(error))
        gc.collect()  # models contain reference cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


def evaluate_target(
    target: Target,
    plan: EvalPlan,
    config: Config,
    task: Task,
    problems: Sequence[Problem],
    report: Report,
    rank: int,
    nproc: int,
) -> None:
    """Generate and judge the missing samples of this process's share of a checkpoint."""
    partial = Partial.beside(plan.result_folder(target))
    partial.check(target.key)
    source = sample_source(target, plan, config, task, problems)
    layout = partial.layout() or partial.agree(source.layout())
    finished = partial.completions()
    judged = settled(partial.verdicts().values())
    share = list(enumerate(layout["chunks"]))[rank::nproc]
    total = sum(len(items) for _, items in share)
    done = 0
    threads = config.sandbox.workers or max(1, len(os.sched_getaffinity(0)) // nproc)
    with (
        closing(PartialWriter(partial, rank)) as writer,
        Judges(task, threads, problems, config.eval.num_samples, plan.label) as judges,
    ):
        report("progress", name=target.name, done=0, total=total, stored=True)
        for index, items in share:
            is_stored = all(item in finished for item in items)
            if is_stored:
                rows = [finished[item] for item in items]
            else:
                rows = source.generate(items)
                writer.chunk(index, rows)
            for row in rows:
                if row["item"] not in judged:
                    judges.submit(row["item"], row)
            writer.verdicts(judges.done())
            done += len(items)
            report("progress", name=target.name, done=done, total=total, stored=is_stored)
        while judges.busy():
            if verdicts := judges.done():
                writer.verdicts(verdicts)
                report("progress", name=target.name, done=done, total=total)  # each verdict is one
        writer.verdicts(judges.done(wait=True))


def sample_source(
    target: Target, plan: EvalPlan, config: Config, task: Task, problems: Sequence[Problem]
) -> SampleSource:
    """The sample source for a task: matches for a game, else single-turn completions."""
    if isinstance(task, SelfPlayTask):
        return MatchSource(target, plan, config, task, problems)
    return SingleTurnSource(target, plan, config, task, problems)
