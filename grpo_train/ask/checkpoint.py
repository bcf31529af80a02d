"""A loaded checkpoint that completes questions. Seeds depend on the question and the number of the sample only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grpo_train.ask.questions import Question
from grpo_train.config import with_changes
from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan
from grpo_train.evaluation.results.keys import decoding
from grpo_train.evaluation.targets import Target
from grpo_train.evaluation.workers.checkpoint import check_fit, load_checkpoint
from grpo_train.policy.completion import Completion
from grpo_train.rewards import Rewards
from grpo_train.rollout import seed_of
from grpo_train.rollout.backends import decoding_steps, make_backend
from grpo_train.rollout.collect import attempt_of
from grpo_train.rollout.prompts import encode_prompts
from grpo_train.tasks import Problem, Task

OnText = Callable[[int, str], None]
"""Called with the number of a sample and the next piece of its text."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn."""

    count: int
    temperature: float
    """0 = greedy."""
    top_p: float
    max_completion_length: int
    """Tokens."""
    seed: int


@dataclass(frozen=True)
class Answer:
    """One completion, judged if its question is a problem of the task."""

    checkpoint: str
    """``step_40``."""
    sample: int
    completion: str
    length: int
    """Tokens."""
    truncated: bool
    rewards: dict[str, float | None] = field(default_factory=dict)
    """By reward function; empty for a question without a gold answer."""
    correct: bool | None = None
    answer: str | None = None
    """Text that was taken as the answer."""
    reason: str = ""


class AskedCheckpoint:
    """A checkpoint in memory. Raises PolicyError for one that is damaged or missing."""

    def __init__(self, target: Target, plan: EvalPlan, config: Config, task: Task, rewards: Rewards) -> None:
        self.name = target.name
        self._task, self._rewards = task, rewards
        path = None if plan.is_backbone(target) else Path(target.path)
        self._policy = load_checkpoint(path, plan, config)
        if config.rollout.backend == "vllm":  # a server is not started for a question
            config = with_changes(config, rollout={"backend": "native"})
        steps = decoding_steps(1, decoding(config, task)["max_completion_length"])
        self._backend = make_backend(config, self._policy, task.stop, steps=steps)
        self.device = str(self._policy.device)

    def prompt_of(self, problem: Problem) -> str:
        """The prompt as the model gets it, special tokens written out."""
        text: str = self._policy.tokenizer.decode(encode_prompts([problem], self._policy.tokenizer)[0])
        return text

    def complete(
        self,
        question: Question,
        sampling: Sampling,
        on_text: OnText = lambda sample, text: None,
        on_answer: Callable[[Answer], None] = lambda answer: None,
    ) -> list[Answer]:
        """Complete a question ``sampling.count`` times; ``on_answer`` gets each answer as it ends.

        Raises PolicyError out of memory or positions, TaskError from a reward function.
        """
        (prompt,) = encode_prompts([question.problem], self._policy.tokenizer)
        check_fit(self._policy, [prompt], sampling.max_completion_length)
        pieces = [_Pieces(self._policy.text) for _ in range(sampling.count)]
        answers: dict[int, Answer] = {}

        def on_token(sample: int, position: int, token: int) -> None:
            if piece := pieces[sample].add(position, token):
                on_text(sample, piece)

        def on_done(sample: int, completion: Completion) -> None:
            answers[sample] = self._judged(question, sample, completion)
            on_answer(answers[sample])

        self._backend.generate(
            [prompt] * sampling.count,
            seeds=[seed_of(sampling.seed, question.problem.prompt, sample) for sample in range(sampling.count)],
            max_completion_length=sampling.max_completion_length,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            on_done=on_done,
            on_token=on_token,
        )
        return [answers[sample] for sample in range(sampling.count)]

    def _judged(self, question: Question, sample: int, completion: Completion) -> Answer:
        attempt = attempt_of(question.problem, completion, f"ask/{question.index}/{sample}", self._policy)
        answer = Answer(self.name, sample, attempt.completion, attempt.length, attempt.truncated)
        if question.index is None:
            return answer
        verdict = self._task.judge(attempt)
        rewards = self._rewards(attempt, verdict)
        return replace(answer, rewards=rewards, correct=verdict.correct, answer=verdict.answer, reason=verdict.reason)


class _Pieces:
    """The text of a completion, piece by piece, each only when its characters are whole."""

    def __init__(self, text_of: Callable[[Sequence[int]], str]) -> None:
        self._text_of = text_of
        self._ids: list[int] = []
        self._shown = 0

    def add(self, position: int, token: int) -> str:
        """The new text, "" while a character lacks bytes. Position 0 begins anew."""
        if position == 0:
            self._ids, self._shown = [], 0
        self._ids.append(token)
        text = self._text_of(self._ids)
        if text.endswith("�"):
            return ""
        piece, self._shown = text[self._shown :], len(text)
        return piece
