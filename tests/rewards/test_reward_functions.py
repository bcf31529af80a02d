"""Reward functions: what each is worth, a user's own, and the controls."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import pytest

from grpo_train.config import schema
from grpo_train.rewards import Rewards, load_rewards
from grpo_train.rewards.functions import correct_and_short, reasoning, tag_count
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict, load_task

PROBLEM = Problem(0, "9+9=", "18", "9+9")
RIGHT = Verdict(True, True, "ok", "18", flexible=True, score=0.75)
WRONG = Verdict(False, True, "wrong", "17", flexible=False, score=-1.0)
UNFORMATTED = Verdict(False, False, "no_answer_tag", None, flexible=True)


def attempt(completion: str = "so</think> <answer>18</answer>", *, length: int = 50, key: str = "0/0/0") -> Attempt:
    return Attempt(PROBLEM, completion, length=length, key=key)


def rewards_of(*names: str, seed: int = 0, **task: object) -> Rewards:
    config = schema.Task(rewards=list(names), **task)  # type: ignore[arg-type]
    return Rewards(config, ("accuracy",), max_completion_length=100, seed=seed)


def test_a_task_without_rewards_of_its_own_is_paid_for_accuracy() -> None:
    rewards = rewards_of()
    assert rewards.names == ["accuracy"]
    assert [rewards(attempt(), verdict).reward for verdict in (RIGHT, WRONG, UNFORMATTED)] == [2.0, 0.0, 0.0]


def test_accuracy_pays_what_the_configuration_says() -> None:
    rewards = rewards_of("accuracy", correct_reward=1.0, incorrect_reward=-0.5)
    assert [rewards(attempt(), verdict).reward for verdict in (RIGHT, WRONG)] == [1.0, -0.5]


def test_every_function_is_logged_by_its_name_and_the_reward_is_their_sum() -> None:
    rewards = rewards_of("accuracy", "format", "correct_and_short", "score", "reasoning", "tag_count")
    assert rewards.names == ["accuracy", "format", "correct_and_short", "score", "reasoning", "tag_count"]
    grade = rewards(attempt(), RIGHT)
    assert grade.rewards == {
        "accuracy": 2.0, "format": 1.0, "correct_and_short": 0.75, "score": 0.75, "reasoning": 0.0, "tag_count": 1.0,
    }  # fmt: skip
    assert grade.reward == pytest.approx(5.5)
    assert rewards(attempt(), WRONG).rewards["format"] == 1.0
    unformatted = rewards(attempt(), UNFORMATTED)
    assert unformatted.rewards["format"] == 0.0
    assert unformatted.rewards["score"] is None  # no points of its own: the function takes no part
    assert unformatted.reward == unformatted.rewards["tag_count"]


def test_tags_are_counted_that_are_said_once() -> None:
    assert tag_count("1</think><answer>2</answer>") == tag_count("</answer> </think> <answer>") == 1.0
    assert tag_count("1</think><answer>2") == pytest.approx(2 / 3)
    assert tag_count("</think></think><answer></answer><answer>") == pytest.approx(1 / 3)
    assert tag_count("<think>2") == tag_count("") == 0.0


def test_correct_and_short_falls_with_the_length_and_never_pays_for_a_wrong_answer() -> None:
    assert [correct_and_short(RIGHT, length, 100) for length in (0, 50, 100, 200)] == [1.0, 0.75, 0.5, 0.5]
    assert correct_and_short(WRONG, 0, 100) == 0.0


def test_reasoning_pays_for_steps_written_out_and_not_for_padding() -> None:
    step = "Then {} eggs are left of the {} that she had that morning"
    steps = ".\n".join(step.format(number, number + 3) for number in range(6))
    assert reasoning(f"<think>{steps}</think> <answer>18</answer>") == 1.0
    assert reasoning(f"{steps}") == 0.0  # thoughts that never end
    assert reasoning("</think> <answer>18</answer>") == 0.0
    one = "She has 3.50 dollars left."
    assert reasoning(one + "</think>") == pytest.approx(0.5 * 5 / 40 + 0.5 / 4)
    assert reasoning(one * 100 + "</think>") < 0.5
    assert reasoning((one + "\n") * 100 + "</think>") == reasoning(one + "</think>")
    assert reasoning("a. b. c. d. e.\n1;2;3;4</think>") == 0.0
    assert reasoning("She has no more.\n" + "very " * 500 + "</think>") < 0.4
    shuffled = ". ".join(map(" ".join, itertools.permutations(["so", "we", "add", "them"])))
    assert reasoning(shuffled + "</think>") < 0.3
    mixed = ". ".join(map(" ".join, itertools.combinations(["so", "we", "add", "them", "and", "see"], 3)))
    assert reasoning(mixed + "</think>") < 0.75
    assert 0.0 <= reasoning("\x00" * 1000 + "</think>") <= 1.0


OWN = """
import math
calls = []
def short(attempt, verdict):
    calls.append(attempt.key)
    return 1.0 if attempt.length < 10 else None
def whole(attempt, verdict):
    return 3
def agrees(attempt, verdict):
    return verdict.correct
def fails(attempt, verdict):
    return 1 / 0
def nan(attempt, verdict):
    return math.nan
def endless(attempt, verdict):
    return math.inf
def text(attempt, verdict):
    return "1.0"
def listed(attempt, verdict):
    return [1.0]
not_a_function = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "my_rewards.py"
    file.write_text(OWN)
    return file


def test_functions_of_a_users_own_file(own: Path) -> None:
    rewards = rewards_of("accuracy", f"{own}:short", f"{own}:whole", f"{own}:agrees")
    assert rewards.names == ["accuracy", "short", "whole", "agrees"]
    assert rewards(attempt(length=5), RIGHT).rewards == {"accuracy": 2.0, "short": 1.0, "whole": 3.0, "agrees": 1.0}
    long = rewards(attempt(length=50), WRONG)
    assert long.rewards == {"accuracy": 0.0, "short": None, "whole": 3.0, "agrees": 0.0}
    assert long.reward == 3.0


def test_functions_of_a_module_in_the_working_directory(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert rewards_of("my_rewards:whole")(attempt(), WRONG).rewards == {"whole": 3.0}
    sys.modules.pop("my_rewards")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "acuracy",
            r"task\.rewards: no reward function is called 'acuracy'; there are accuracy, format, .*module:func",
        ),
        ("{own}:nothing", r"task\.rewards: .*my_rewards\.py has no function 'nothing'; it has short, whole, agrees"),
        ("{own}:not_a_function", r"task\.rewards: .* has no function 'not_a_function'"),
        ("/no/such/file.py:f", r"task\.rewards: .*there is no file /no/such/file\.py"),
        ("no_such_module:f", r"task\.rewards: .*there is no module 'no_such_module'"),
        (":f", r"task\.rewards: ':f'"),
    ],
)
def test_a_function_that_is_none_is_named_with_its_key(own: Path, name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        rewards_of(name.format(own=own))


def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(TaskError, match=r"leaves\.py cannot be imported: SystemExit: 3"):
        rewards_of(f"{tmp_path / 'leaves.py'}:f")
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    with pytest.raises(TaskError, match=r"broken\.py cannot be imported: ModuleNotFoundError: .*no_such_library"):
        rewards_of(f"{tmp_path / 'broken.py'}:f")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fails", "'fails' raised ZeroDivisionError: division by zero"),
        ("nan", "'nan' returned 'nan', which is no number to learn from"),
        ("endless", "'endless' returned 'inf', which is no number"),
        ("text", "'text' returned '1.0', which is no number"),
        ("listed", r"'listed' returned '\[1.0\]', which is no number"),
    ],
)
def test_what_is_no_number_stops_the_run_and_names_the_function(own: Path, function: str, message: str) -> None:
    with pytest.raises(TaskError, match=rf"task\.rewards: {message}"):
        rewards_of(f"{own}:{function}")(attempt(), RIGHT)


def test_two_functions_of_one_name_are_refused(own: Path) -> None:
    with pytest.raises(TaskError, match="two reward functions are called 'accuracy'"):
        rewards_of("accuracy", "accuracy")


def test_weights_must_belong_to_functions_that_take_part() -> None:
    task = load_task(schema.Task(name="addition"))
    config = schema.Config.model_validate(
        {"task": {"name": "addition"}, "algorithm": {"reward_weights": {"format": 1}}}
    )
    with pytest.raises(
        TaskError, match=r"algorithm\.reward_weights: no reward function is called format; there are acc"
    ):
        load_rewards(task, config)


# --------------------------------------------------------------------------------------------------------- controls


def test_the_random_control_pays_one_half_whatever_is_said_and_in_whatever_order() -> None:
    rewards = rewards_of("accuracy", reward_control="random", seed=3)
    assert rewards.names == ["random"]
    keys = [f"{buffer}/{group}/{sample}" for buffer in range(10) for group in range(10) for sample in range(10)]
    first = {key: rewards(attempt(key=key), RIGHT).reward for key in keys}
    assert set(first.values()) == {0.0, 2.0}
    assert 0.4 < sum(first.values()) / 2 / len(keys) < 0.6
    random.Random(0).shuffle(keys)
    again = rewards_of("format", reward_control="random", seed=3)
    random.seed(99)
    assert {key: again(attempt("other", key=key), WRONG).reward for key in keys} == first
    other_seed = rewards_of(reward_control="random", seed=4)
    assert {key: other_seed(attempt(key=key), RIGHT).reward for key in keys} != first


def test_the_inverted_control_pays_for_what_is_wrong() -> None:
    rewards = rewards_of(reward_control="inverted", correct_reward=1.0, incorrect_reward=-1.0)
    assert [rewards(attempt(), verdict).rewards for verdict in (RIGHT, WRONG, UNFORMATTED)] == [
        {"inverted": -1.0}, {"inverted": 1.0}, {"inverted": 1.0},
    ]  # fmt: skip


def test_the_format_control_pays_for_tags_alone() -> None:
    rewards = rewards_of(reward_control="format_only")
    assert [rewards(attempt(), verdict).rewards for verdict in (RIGHT, WRONG, UNFORMATTED)] == [
        {"format_only": 2.0}, {"format_only": 2.0}, {"format_only": 0.0},
    ]  # fmt: skip
