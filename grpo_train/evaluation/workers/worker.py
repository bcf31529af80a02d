"""An evaluating process: loads each checkpoint, answers its share of the problems and judges what was said.

Started by :mod:`grpo_train.evaluation.runner` with a plan's file, the descriptor to report on, its number and how many
there are. Several of them share nothing but the plan and the directory of unfinished samples: each takes every n-th
chunk, and none waits for another.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from grpo_train.config.schema import Config
from grpo_train.evaluation.judging import Judges, attempt_of, settled
from grpo_train.evaluation.plan import EvalPlan, Target, problems_of, task_of
from grpo_train.evaluation.results.partial import Partial, PartialError, PartialWriter
from grpo_train.evaluation.workers.matches import Matches
from grpo_train.evaluation.workers.single_turn import SingleTurn
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir.processes import die_with_parent
from grpo_train.tasks import Problem, Task, TaskError
from grpo_train.tasks.shared.self_play import SelfPlayTask

Report = Callable[..., None]


class Answers(Protocol):
    """Who answers: :class:`~grpo_train.evaluation.workers.single_turn.SingleTurn`, or what plays a task's matches."""

    def layout(self) -> dict[str, Any]:
        """``chunks``: lists of items that are generated together, and facts of the machine for the summary."""

    def answer(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """For each item its row: item, seed, completion, length, truncated."""


def main() -> int:
    """Evaluate every target of the plan; a step that raises is reported and the next one goes on."""
    die_with_parent(signal.SIGKILL)
    plan = EvalPlan.from_json(json.loads(Path(sys.argv[1]).read_text()))
    channel, process, processes = (int(word) for word in sys.argv[2:5])

    def report(event: str, **fields: Any) -> None:
        os.write(channel, (json.dumps({"event": event, **fields}) + "\n").encode())

    config = Config.model_validate(plan.config)
    task = task_of(config)
    problems = problems_of(plan, config, task)
    for target in plan.targets:
        report("started", name=target.name)
        try:
            evaluate(target, plan, config, task, problems, report, process, processes)
            report("done", name=target.name)
        except Exception as error:  # one step must not cost the others
            told = isinstance(error, (PolicyError, TaskError, PartialError))
            if not told:
                traceback.print_exc()
            report("failed", name=target.name, reason=f"{error}" if told else f"{type(error).__name__}: {error}")
        gc.collect()  # models hold themselves in cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


def evaluate(
    target: Target,
    plan: EvalPlan,
    config: Config,
    task: Task,
    problems: Sequence[Problem],
    report: Report,
    process: int = 0,
    processes: int = 1,
) -> None:
    """Make what is missing of this process's share of a checkpoint's samples and verdicts."""
    partial = Partial.beside(plan.final(target))
    partial.check(target.key)
    answers = who_answers(target, plan, config, task, problems)
    layout = partial.layout() or partial.agree(answers.layout())
    have = partial.completions()
    judged = settled(partial.verdicts().values())
    mine = list(enumerate(layout["chunks"]))[process::processes]
    total = sum(len(items) for _, items in mine)
    done = 0
    writer = PartialWriter(partial, process)
    threads = config.sandbox.workers or max(1, len(os.sched_getaffinity(0)) // processes)
    try:
        with Judges(task, threads) as judges:

            def judge(rows: Sequence[dict[str, Any]]) -> None:
                for row in rows:
                    problem, sample = divmod(row["item"], config.eval.num_samples)
                    if row["item"] not in judged:
                        judges.submit(row["item"], attempt_of(problems[problem], sample, plan.label, row))

            for number, items in mine:
                if not all(item in have for item in items):
                    rows = answers.answer(items)
                    writer.chunk(number, rows)
                    judge(rows)
                else:
                    judge([have[item] for item in items])
                writer.verdicts(judges.done())
                done += len(items)
                report("progress", name=target.name, done=done, total=total)
            writer.verdicts(judges.done(wait=True))
    finally:
        writer.close()


def who_answers(target: Target, plan: EvalPlan, config: Config, task: Task, problems: Sequence[Problem]) -> Answers:
    """The model, once a prompt; where the task is a game, the model and its opponents."""
    if isinstance(task, SelfPlayTask):
        return Matches(target, plan, config, task, problems)
    return SingleTurn(target, plan, config, task, problems)


if __name__ == "__main__":
    raise SystemExit(main())
