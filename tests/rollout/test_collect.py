"""Collecting samples: order, names of attempts, judging beside generation, and places that no sample takes."""

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
from grpo_train.rewards import Grade, load_rewards
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Sample, SingleTurn
from grpo_train.rollout.prompts import Prompt
from grpo_train.tasks import Attempt, Problem, Split, TaskError, Verdict
from grpo_train.tasks.shared.base import TaskDefaults, means
from grpo_train.train.buffer import from_state, groups_of, make_buffer, to_state
from grpo_train.train.distributed import Group
from tests.support.engine import config_text


class Words:
    """A tokenizer whose tokens are numbers, and whose texts spell them."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids))


class Counting:
    """Answers 0, 1, 2, …, those that are even first; ``between`` is called after the first."""

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
        made = [Completion(tuple(prompt), (i,), (-1.0,), finished=i % 5 != 4) for i, prompt in enumerate(prompts)]
        for i in sorted(range(len(made)), key=lambda i: i % 2):
            on_done(i, made[i])
            if i == 0:
                self._between()
        return made


@dataclass(frozen=True)
class Even(TaskDefaults):
    """An even number is right; ``judged`` hears of each attempt."""

    judged: Callable[[Attempt], None] = lambda attempt: None

    def size(self, split: Split) -> int:
        return 10

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(index, f"{index}?", "", f"{index}?")

    def judge(self, attempt: Attempt) -> Verdict:
        self.judged(attempt)
        right = int(attempt.completion) % 2 == 0
        return Verdict(right, True, "ok" if right else "wrong", attempt.completion, metrics={"half": float(right)})


def config_of(**changes: Any) -> Config:
    return load_config(
        config_text(
            **{"rollout__buffer_size": 4, "rollout__num_generations": 3, "train__microbatch_size": 1, **changes}
        )
    )


def prompts_of(task: Even, groups: Sequence[int]) -> list[Prompt]:
    return [Prompt(task.problem("train", number), (number, 1)) for number in groups]


def collected(task: Even, config: Config, backend: Counting, groups: Sequence[int]) -> list[Sample]:
    collector = SingleTurn(task, load_rewards(task, config), backend, Words(), config)
    samples = collector.collect(7, groups, prompts_of(task, groups))
    return [sample for sample in samples if sample is not None]


@pytest.mark.parametrize("slow", [False, True])
def test_samples_stand_in_order_whoever_is_there_first(slow: bool) -> None:
    keys: list[str] = []
    task = Even(slow=slow, judged=lambda attempt: keys.append(attempt.key))
    config = config_of(sandbox__workers=3)
    samples = collected(task, config, Counting(), [2, 3])
    assert [sample.text for sample in samples] == ["0", "1", "2", "3", "4", "5"]
    assert [sample.prompt.problem.index for sample in samples] == [2, 2, 2, 3, 3, 3]
    assert [sample.grade.verdict.correct for sample in samples] == [True, False] * 3
    assert [sample.grade.rewards for sample in samples] == [{"accuracy": 2.0}, {"accuracy": 0.0}] * 3
    assert sorted(keys) == ["7/2/0", "7/2/1", "7/2/2", "7/3/0", "7/3/1", "7/3/2"], "names that no other attempt has"


def test_a_slow_task_is_judged_while_the_rest_is_generated() -> None:
    judging = threading.Event()

    def between() -> None:
        assert judging.wait(10), "the first is judged before the second is there"

    task = Even(slow=True, judged=lambda attempt: judging.set())
    assert len(collected(task, config_of(), Counting(between), [0, 1])) == 6


def test_what_is_drawn_depends_on_the_place_in_the_run_alone() -> None:
    """Not on who generates it: two processes draw what one draws."""
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


def test_a_judge_that_fails_is_not_swallowed() -> None:
    def fail(attempt: Attempt) -> None:
        raise TaskError("the sandbox is gone")

    with pytest.raises(TaskError, match="the sandbox is gone"):
        collected(Even(slow=True, judged=fail), config_of(), Counting(), [0])


def test_weights_of_functions_that_take_no_part_are_refused_before_anything_starts() -> None:
    with pytest.raises(TaskError, match=r"reward_weights: 'acuracy' is not a reward function of this run; did you mean"):
        load_rewards(Even(), config_of(algorithm__reward_weights={"acuracy": 2.0}))
    load_rewards(Even(), config_of(algorithm__reward_weights={"overlong": 2.0}, algorithm__overlong_buffer=3))


# ------------------------------------------------------------------------------------------------------- self-play


def game(config: Config, turns: Sequence[int], returns: Sequence[tuple[float, float]]) -> list[Sample | None]:
    """Games of two roles that move by turns, of so many turns each."""
    places: list[Sample | None] = []
    for number, (length, ends) in enumerate(zip(turns, returns, strict=True)):
        problem = Problem(number, "board", "", "board")
        for turn in range(config.rollout.num_generations):
            completion = Completion((1, 2), (turn,) * (turn + 1), (-1.0,) * (turn + 1), finished=True)
            role = turn % 2
            grade = Grade(Verdict(True, True, "ok", "5"), {"score": ends[role]})
            sample = Sample(Prompt(problem, (1, 2)), completion, "5", grade, role=f"tictactoe/{'XO'[role]}")
            places.append(sample if turn < length else None)
    return places


def test_a_game_that_ends_early_leaves_places_that_count_for_nothing() -> None:
    config = config_of(algorithm__updates_per_buffer=2)
    samples = game(config, [3, 1, 2, 3], [(1, -1), (-1.5, 0.5), (0, 0), (-1, 1)])
    baselines = RoleBaselines(0.95)
    buffer, rows, tokens = make_buffer(1, groups_of(0, 1, 4, 2), samples, config, Group(), baselines)
    assert len(rows) == 9
    assert [len(c.ids) for c in buffer.completions] == [1, 2, 3, 1, 0, 0, 1, 2, 0, 1, 2, 3]
    assert buffer.counted.tolist() == [bool(c.ids) for c in buffer.completions]
    assert buffer.completions_per_update == [4, 5]
    assert buffer.tokens_per_update == [7, 9]
    assert tokens == 9 * 2 + 16
    expected = RoleBaselines(0.95).advantages(
        [
            ("tictactoe", {"X": 1, "O": -1}),
            ("tictactoe", {"X": -1.5}),
            ("tictactoe", {"X": 0, "O": 0}),
            ("tictactoe", {"X": -1, "O": 1}),
        ]
    )
    told = [expected[row["group"]][row["role"].partition("/")[2]] for row in rows]
    assert [row["advantage"] for row in rows] == told
    assert buffer.advantages[buffer.counted].tolist() == pytest.approx(told)
    assert baselines.baseline("tictactoe", "O") != 0
    assert buffer.metrics["self_play/turns"] == 9 / 4
    assert buffer.metrics["self_play/tictactoe/X/reward"] == pytest.approx(-1.5 / 4)
    assert "frac_reward_zero_std" not in buffer.metrics

    again = from_state(to_state(buffer, Group(), config), Group(), config)
    assert again.completions == buffer.completions
    assert again.completions_per_update == buffer.completions_per_update
    assert torch.equal(again.advantages, buffer.advantages)


def test_two_ranks_share_games_and_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's buffer, with the other's games gathered, is its part of what one process makes."""
    config = config_of()
    samples = game(config, [3, 1, 2, 3], [(1, -1), (-1.5, 0.5), (0, 0), (-1, 1)])
    alone = RoleBaselines(0.95)
    whole, all_rows, _ = make_buffer(1, groups_of(0, 1, 4, 1), samples, config, Group(), alone)
    barrier, told = threading.Barrier(2), [None, None]

    def gather(self: Group, value: Any) -> list[Any]:
        told[self.rank] = value
        barrier.wait(10)
        return list(told)

    monkeypatch.setattr(Group, "gather", gather)
    both = [RoleBaselines(0.95), RoleBaselines(0.95)]

    def rank(number: int) -> Any:
        mine = groups_of(number, 2, 4, 1)
        share = samples[number * 6 : number * 6 + 6]
        return make_buffer(1, mine, share, config, Group(number, number, 2), both[number])

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(rank, range(2)))
    assert [rows for _, rows, _ in parts] == [all_rows, all_rows]
    assert torch.equal(torch.cat([buffer.advantages for buffer, _, _ in parts]), whole.advantages)
    assert both[0].state_dict() == both[1].state_dict() == alone.state_dict()


def test_counts_are_summed_and_the_rest_is_averaged() -> None:
    assert means([{"a": 1.0, "n_count": 1.0}, {"a": 2.0}, {"n_count": 1.0, "b": 5.0}]) == {
        "a": 1.5,
        "b": 5.0,
        "n_count": 2.0,
    }
    assert means([]) == {}
