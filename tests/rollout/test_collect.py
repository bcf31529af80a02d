"""Collecting samples: order, keys of attempts, judging during generation, and unused slots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from grpo_train.algorithm import RoleBaselines
from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.rewards import load_rewards
from grpo_train.rewards.number import judge_number
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Role, Sample, SingleTurn
from grpo_train.rollout.prompts import Prompt
from grpo_train.tasks import Attempt, Problem, Split, TaskError, Verdict
from grpo_train.tasks.shared.base import TaskDefaults, means
from grpo_train.train.buffer import RolloutBuffer, from_state, groups_of, make_buffer, to_state
from grpo_train.train.distributed import World
from grpo_train.train.samples import compute_advantages, gather_samples, total_rewards
from grpo_train.train.step_log import rollout_metrics, rollout_rows
from tests.support.engine import config_text
from tests.support.patience import PATIENCE


class Words:
    """A policy whose tokens are numbers and whose texts spell them out, and its tokenizer."""

    @property
    def tokenizer(self) -> Words:
        return self

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.text(ids)

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


class Counting:
    """A backend that answers 0, 1, 2, …, even ones first; ``between`` is called after the first."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self._between, self.seeds = between, list[int]()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        on_done: Callable[[int, Completion], None],
        **sampling: Any,
    ) -> list[Completion]:
        self.seeds += seeds
        completions = [
            Completion(tuple(prompt), (i,), (-1.0,), finished=i % 5 != 4) for i, prompt in enumerate(prompts)
        ]
        for i in sorted(range(len(completions)), key=lambda i: i % 2):
            on_done(i, completions[i])
            if i == 0:
                self._between()
        return completions


@dataclass(frozen=True)
class Even(TaskDefaults):
    """A task whose correct answers are even numbers; ``judged`` is called with each attempt."""

    judged: Callable[[Attempt], None] = lambda attempt: None

    def size(self, split: Split) -> int:
        return 10

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(index, f"{index}?", "", f"{index}?")

    def judge(self, attempt: Attempt) -> Verdict:
        self.judged(attempt)
        correct = int(attempt.completion) % 2 == 0
        return Verdict(
            correct, True, "ok" if correct else "wrong", attempt.completion, metrics={"half": float(correct)}
        )


def config_of(**changes: Any) -> Config:
    return load_config(
        config_text(
            **{"rollout__buffer_size": 4, "rollout__num_generations": 3, "train__microbatch_size": 1, **changes}
        )
    )


def prompts_of(task: Even, groups: Sequence[int]) -> list[Prompt]:
    return [Prompt(task.problem("train", number), (number, 1)) for number in groups]


def collected(task: Even, config: Config, backend: Counting, groups: Sequence[int]) -> list[Sample]:
    collector = SingleTurn(task, load_rewards(task, config), backend, Words(), config)  # type: ignore[arg-type]
    return collector.generate_and_judge(7, groups, prompts_of(task, groups))


class Closed(Words):
    """Prompts end in closed thoughts; completions are an answer in tags."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return "<think>\n\n</think>\n\n"

    def text(self, ids: Sequence[int]) -> str:
        return "<answer>4</answer>"


def test_thoughts_that_the_prompt_closes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Attempt] = []
    monkeypatch.setattr(Even, "judge", lambda self, attempt: (attempts.append(attempt), judge_number(attempt))[1])
    monkeypatch.setattr(Even, "problem", lambda self, split, index: Problem(index, "", "4", ""))
    task, config = Even(), config_of()
    collector = SingleTurn(task, load_rewards(task, config), Counting(), Closed(), config)
    found = collector.generate_and_judge(7, [1], prompts_of(task, [1]))
    assert [sample.verdict.reason for sample in found] == ["ok"] * 3
    assert {(attempt.completion, attempt.text) for attempt in attempts} == {
        ("<answer>4</answer>", "</think><answer>4</answer>")
    }


@pytest.mark.parametrize("slow", [False, True])
def test_samples_keep_the_order_of_prompts(slow: bool) -> None:
    keys: list[str] = []
    task = Even(slow=slow, judged=lambda attempt: keys.append(attempt.key))
    config = config_of(sandbox__workers=3)
    samples = collected(task, config, Counting(), [2, 3])
    assert [sample.text for sample in samples] == ["0", "1", "2", "3", "4", "5"]
    assert [sample.problem.index for sample in samples] == [2, 2, 2, 3, 3, 3]
    assert [sample.verdict.correct for sample in samples] == [True, False] * 3
    assert [sample.rewards for sample in samples] == [{"accuracy": 2.0}, {"accuracy": 0.0}] * 3
    assert sorted(keys) == ["7/2/0", "7/2/1", "7/2/2", "7/3/0", "7/3/1", "7/3/2"], "unique keys"


def test_slow_tasks_are_judged_during_generation() -> None:
    judging = threading.Event()

    def between() -> None:
        assert judging.wait(60 * PATIENCE), "the first is judged before the second exists"

    task = Even(slow=True, judged=lambda attempt: judging.set())
    assert len(collected(task, config_of(), Counting(between), [0, 1])) == 6


def test_seeds_do_not_depend_on_the_world_size() -> None:
    """Two processes draw the same random numbers as one."""
    task = Even()
    whole, parts = Counting(), [Counting(), Counting()]
    collected(task, config_of(), whole, [0, 1, 2, 3])
    for backend, groups in zip(parts, ([0, 1], [2, 3]), strict=True):
        collected(task, config_of(), backend, groups)
    assert whole.seeds == parts[0].seeds + parts[1].seeds
    assert len(set(whole.seeds)) == 12
    other = Counting()
    collected(task, config_of(run__seed=1), other, [0, 1, 2, 3])
    assert not set(other.seeds) & set(whole.seeds)


def test_judge_errors_are_raised() -> None:
    def fail(attempt: Attempt) -> None:
        raise TaskError("the sandbox is gone")

    with pytest.raises(TaskError, match="the sandbox is gone"):
        collected(Even(slow=True, judged=fail), config_of(), Counting(), [0])


def test_unknown_reward_weights_are_an_error() -> None:
    with pytest.raises(
        TaskError, match=r"reward_weights: 'acuracy' is not a reward function of this run; did you mean"
    ):
        load_rewards(Even(), config_of(algorithm__reward_weights={"acuracy": 2.0}))
    load_rewards(Even(), config_of(algorithm__reward_weights={"overlong": 2.0}, algorithm__overlong_buffer=3))


# ------------------------------------------------------------------------------------------------------- self-play


def game(config: Config, turns: Sequence[int], returns: Sequence[tuple[float, float]]) -> list[Sample]:
    """Games between two roles, with the given numbers of turns and returns."""
    samples = []
    for number, (length, ends) in enumerate(zip(turns, returns, strict=True)):
        problem = Problem(number, "board", "", "board")
        for turn in range(length):
            completion = Completion((1, 2), (turn,) * (turn + 1), (-1.0,) * (turn + 1), finished=True)
            player = turn % 2
            verdict, rewards = Verdict(True, True, "ok", "5"), {"score": ends[player]}
            role = Role("tictactoe", "XO"[player])
            samples.append(Sample.of(number, turn, Attempt(problem, "5"), completion, verdict, rewards, role))
    return samples


def make_share(
    rollouts: Sequence[Sample], config: Config, world: World, baselines: RoleBaselines
) -> tuple[RolloutBuffer, list[dict[str, Any]], dict[str, Any]]:
    """A rank's buffer, and the log rows and metrics of all ranks."""
    groups = groups_of(world, config)
    samples = gather_samples(rollouts, world)
    rewards = total_rewards(samples, config.algorithm)
    advantages = compute_advantages(samples, rewards, config, baselines)
    buffer = make_buffer(rollouts, groups, samples, advantages, config)
    return buffer, rollout_rows(1, samples, rewards, advantages), rollout_metrics(samples, rewards)


def test_unused_slots_of_a_game_do_not_count() -> None:
    config = config_of(algorithm__updates_per_buffer=2)
    rollouts = game(config, [3, 1, 2, 3], [(1, -1), (-1.5, 0.5), (0, 0), (-1, 1)])
    baselines = RoleBaselines(0.95)
    buffer, rows, metrics = make_share(rollouts, config, World(), baselines)
    assert len(rows) == 9
    assert [len(c.ids) for c in buffer.completions] == [1, 2, 3, 1, 0, 0, 1, 2, 0, 1, 2, 3]
    assert buffer.counted.tolist() == [bool(c.ids) for c in buffer.completions]
    assert buffer.completions_per_update == [4, 5]
    assert buffer.tokens_per_update == [7, 9]
    samples = gather_samples(rollouts, World())
    assert sum(sample.prompt_length + sample.length for sample in samples) == 9 * 2 + 16
    games = RoleBaselines(0.95).advantages(
        [
            ("tictactoe", {"X": 1, "O": -1}),
            ("tictactoe", {"X": -1.5}),
            ("tictactoe", {"X": 0, "O": 0}),
            ("tictactoe", {"X": -1, "O": 1}),
        ]
    )
    expected = [games[row["group"]][row["role"].partition("/")[2]] for row in rows]
    assert [row["advantage"] for row in rows] == expected
    assert buffer.advantages[buffer.counted].tolist() == pytest.approx(expected)
    assert baselines.baseline("tictactoe", "O") != 0
    assert metrics["self_play/turns"] == 9 / 4
    assert metrics["self_play/tictactoe/X/reward"] == pytest.approx(-1.5 / 4)
    assert "frac_reward_zero_std" not in metrics

    again = from_state(to_state(buffer, World(), config), World(), config)
    assert again.completions == buffer.completions
    assert again.completions_per_update == buffer.completions_per_update
    assert torch.equal(again.advantages, buffer.advantages)


def test_saved_buffers_of_format_1_are_read() -> None:
    config = config_of()
    rollouts = game(config, [3, 3, 3, 3], [(1, -1)] * 4)
    buffer, _, _ = make_share(rollouts, config, World(), RoleBaselines(0.95))
    state = to_state(buffer, World(), config)
    state["metrics"] = {"groups/all_right": 0.25, "accuracy/tolerant": 0.5}
    assert from_state(state, World(), config).metrics == {"groups/all_correct": 0.25, "accuracy/flexible": 0.5}


def test_two_ranks_share_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's buffer is its part of the buffer that one process makes."""
    config = config_of()
    rollouts = game(config, [3, 1, 2, 3], [(1, -1), (-1.5, 0.5), (0, 0), (-1, 1)])
    alone = RoleBaselines(0.95)
    whole, all_rows, all_metrics = make_share(rollouts, config, World(), alone)
    barrier, values = threading.Barrier(2), [None, None]

    def gather(self: World, value: Any) -> list[Any]:
        values[self.rank] = value
        barrier.wait(60 * PATIENCE)
        return list(values)

    monkeypatch.setattr(World, "gather", gather)
    both = [RoleBaselines(0.95), RoleBaselines(0.95)]

    def on_rank(rank: int) -> Any:
        return make_share(rollouts[rank * 6 : rank * 6 + 6], config, World(rank, rank, 2), both[rank])

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(on_rank, range(2)))
    assert [(rows, metrics) for _, rows, metrics in parts] == [(all_rows, all_metrics)] * 2
    assert torch.equal(torch.cat([buffer.advantages for buffer, _, _ in parts]), whole.advantages)
    assert both[0].state_dict() == both[1].state_dict() == alone.state_dict()


def test_means_average_and_sum_counts() -> None:
    assert means([{"a": 1.0, "n_count": 1.0}, {"a": 2.0}, {"n_count": 1.0, "b": 5.0}]) == {
        "a": 1.5,
        "b": 5.0,
        "n_count": 2.0,
    }
    assert means([]) == {}
