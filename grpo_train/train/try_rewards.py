"""A call of every user-defined reward function before a run is made, on dummy completions of a real problem.

A function that fails does so before the model is loaded and the first completions are generated. Torch-free.
"""

from __future__ import annotations

from dataclasses import replace

from grpo_train.rewards import Rewards
from grpo_train.tasks import Attempt, Mixture, Problem, Task
from grpo_train.tasks.shared.self_play import SelfPlayTask

COUNT = 2
"""Number of completions: a single one would not show a list of the wrong length."""
IDS = tuple(range(1, 17))
"""Token ids of a completion."""


def try_rewards(rewards: Rewards, task: Task) -> None:
    """Call the functions on completions of the first training problem of each task, and end their process.

    Raises TaskError for a function that fails, and for a task whose first problem cannot be read.
    """
    if not rewards.has_user_functions:
        return
    try:
        if isinstance(task, Mixture):
            for label, part in task.parts.items():
                _try(rewards, part, replace(part.problem("train", 0), task=label))
        else:
            _try(rewards, task, task.problem("train", 0))
    finally:
        rewards.close()


def _try(rewards: Rewards, task: Task, problem: Problem) -> None:
    text = f"It is so.</think> <answer>{problem.answer or 1}</answer>"
    attempts = [Attempt(problem, text, length=len(IDS), key=f"0/0/{slot}", ids=IDS) for slot in range(COUNT)]
    verdict = task.judge(attempts[0])
    if isinstance(task, SelfPlayTask):  # its scores come from whole games
        verdict = replace(verdict, score=0.0)
    rewards.complete([rewards.start(attempt, verdict) for attempt in attempts], attempts, COUNT)
