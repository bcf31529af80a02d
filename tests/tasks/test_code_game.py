"""code_game: the referee's rules with the real sandbox, the points, and rollouts against an opponent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.config import load_config
from grpo_train.config.schema import Config, Sandbox
from grpo_train.config.schema import Task as TaskConfig
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError
from grpo_train.rewards import load_rewards
from grpo_train.rollout import Completion
from grpo_train.rollout.adversary import AdversarialTask, Adversary, Opponent, load_opponent, make_adversary
from grpo_train.rollout.prompts import Prompt
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict, load_task
from grpo_train.tasks.code_game import CodeGameTask, Limits, prediction, referee
from grpo_train.tasks.shared.base import means
from tests.support.engine import config_text

FIBONACCI = "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(10))"


def game(**keys: Any) -> CodeGameTask:
    task = load_task(TaskConfig(name="code_game", **keys), Sandbox(cpu_seconds=1.0))
    assert isinstance(task, CodeGameTask)
    return task


def judge(program: str, reply: str | None = None, **keys: Any) -> Verdict:
    task = game(**keys)
    return task.judge(Attempt(task.problem("train", 0), f"{program}\n```", reply=reply))


# ----------------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (FIBONACCI, "ok"),
        ("print('ab' * 3)", "ok"),
        ("import math\nprint(math.gcd(12, 18))", "ok"),
        ("print(sorted({'a', 'b', 'c'})[0] + 'xyz'[1:])", "ok"),
        ("", "no_code"),
        ("# only a comment", "no_code"),
        ("'''only a text'''", "no_code"),
        ("print(", "syntax_error"),
        ("-" * 900 + "1", "syntax_error"),
        ("1 / 0", "runtime_error"),
        ("while True: pass", "timeout"),
        ("x = 1", "no_output"),
        ("print('  ')", "no_output"),
        ("print('ab' * 90)", "output_too_long"),
        ("print('hello')", "copied"),
        ("print(['same', 1])", "copied"),
        ("print(7 ** 40)", "long_number"),
        ("x = 12345\nprint(x % 7)", "large_constant"),
        ("print(len('" + "x" * 30 + "'))", "large_constant"),
        ("print(1e999)", "large_constant"),
        ("x = 1\n" * 60 + "print(x)", "too_big"),
        ("import random\nrandom.seed(1)\nprint(random.random())", "forbidden_import"),
        ("from time import time\nprint(int(time()) % 2)", "forbidden_import"),
        ("import hashlib", "forbidden_import"),
        ("import secrets as s, math", "forbidden_import"),
        ("from . import x", "forbidden_import"),
        ("print(hash('a') % 2)", "forbidden_name"),
        ("print(id(1) % 100)", "forbidden_name"),
        ("print('a'.__hash__() % 2)", "forbidden_name"),
        ("print(__import__('random').random())", "forbidden_name"),
        ("print(eval('1+1'))", "forbidden_name"),
        ("print(getattr('a', '_' + '_hash_' + '_')() % 2)", "forbidden_name"),
        ("from operator import attrgetter as g\nprint(g('__hash__')('a')() % 2)", "forbidden_name"),
        ("import statistics\nprint(statistics.random.Random(1).randint(0, 9))", "forbidden_name"),
        ("import collections as c\nm = c\nprint(m._sys.maxsize % 7)", "forbidden_name"),
        ("from dataclasses import sys as s\nprint(s.maxsize % 7)", "forbidden_name"),
        ("import statistics as s\nprint(s.NormalDist().samples(1, seed=7)[0] > 0)", "forbidden_name"),
        ("class A:\n    def __init__(self):\n        self._x = 3\nprint(A()._x * 15)", "ok"),
        ("print(object())", "address"),
        ("print(repr(object())[-5:-1], repr([].append)[-5:-1])", "not_reproducible"),
        ("print([repr(object())[-4:-2] for _ in range(3)])", "not_reproducible"),
        ("print(''.join)", "address"),
        ("print(*({'c': 1, 'e': 1, 'f': 3, 'q': 3, 'r': 4}.keys() - 'e'))", "not_reproducible"),
        ("print('\\x07' * 3)", "unprintable"),
        ("print('\\u200b' * 3)", "unprintable"),
        ("print('a\\tb' * 2)", "ok"),
        ("print('<|im_' + 'end|>')", "special_token"),
        ("x = '<|im_end|>'\nprint(5)", "special_token"),
        ("print(list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})[0] * 2)", "not_reproducible"),
        ("print('</answer>'[0:9])", "answer_tag"),
    ],
)
def test_the_rules(program: str, reason: str) -> None:
    play = game().play(Attempt(game().problem("train", 0), f"{program}\n```"))
    assert play.reason == reason
    assert play.is_valid == (reason == "ok")
    assert (play.output is not None) == (reason == "ok")
    verdict = judge(program)
    assert verdict.score is None  # nobody was asked
    assert verdict.reason == ("no_opponent" if reason == "ok" else reason)
    assert verdict.metrics["code_game/valid"] == float(reason == "ok")
    assert not verdict.correct


def test_the_order_of_a_set_is_chance_even_when_two_runs_agree() -> None:
    """Each of these prints one of two texts; without more runs half of them would pass."""
    programs = [f"print(list({{'{a}', 'x{a}'}})[0] * 3)" for a in "abcdefghij"]
    reasons = [referee(program, Limits(300, 60)).reason for program in programs]
    assert reasons.count("not_reproducible") >= 6
    assert set(reasons) <= {"not_reproducible", "ok"}


def test_what_a_program_says_to_its_reader_is_taken_out() -> None:
    program = (
        '"""The answer is 7."""\n# it prints 7\ndef f():\n    "It returns 7."\n    return 40 + 2  # seven\nprint(f())\n'
        "class A:\n    'Seven.'"
    )
    play = referee(program, Limits(300, 60))
    assert (play.reason, play.output) == ("ok", "42")
    assert play.source == "def f():\n    return 40 + 2\nprint(f())\n\nclass A:\n    pass"


def test_more_may_be_written_at_a_higher_level() -> None:
    assert (game().limits.characters, game().limits.output) == (300, 60)
    assert (game(level=10).limits.characters, game(level=10).limits.output) == (1200, 240)
    assert "at most 1200 characters" in game(level=10).problem("test", 0).question
    long = "x = 1\n" * 60 + "print(x)"
    assert (judge(long).reason, judge(long, level=4).reason) == ("too_big", "no_opponent")


def test_requests_are_held_out() -> None:
    task = game()
    assert (task.name, task.rewards, task.slow, task.stop) == ("code_game", ("score",), True, ("\n```",))
    train, test = ({task.problem(split, k).prompt for k in range(task.size(split))} for split in ("train", "test"))
    assert (len(train), len(test)) == (522, 128)
    assert not train & test
    with pytest.raises(TaskError, match="no validation split"):
        task.size("validation")


# ---------------------------------------------------------------------------------------------------------- the points


@pytest.mark.parametrize(
    ("reply", "score", "reason"),
    [
        ("The tenth is 55.</think> <answer>55</answer>", -1.0, "predicted"),
        ("<answer>\n55 \n</answer>", -1.0, "predicted"),
        ("<answer>54</answer> no, <answer>55</answer>", -1.0, "predicted"),
        ("<answer>89</answer>", 1.0, "ok"),
        ("It prints 55.", 1.0, "ok"),
        ("", 1.0, "ok"),
        (None, None, "no_opponent"),
    ],
)
def test_the_points(reply: str | None, score: float | None, reason: str) -> None:
    verdict = judge(FIBONACCI, reply)
    assert (verdict.score, verdict.reason, verdict.correct) == (score, reason, score == 1.0)
    assert verdict.formatted
    if reply is not None:
        assert verdict.metrics["code_game/predicted"] == float(score == -1.0)
        assert verdict.metrics["code_game/no_answer"] == float("<answer>" not in reply)
    assert verdict.facts["output"] == "55"


def test_breaking_the_rules_neither_costs_nor_pays() -> None:
    verdict = judge("import random\nprint(random.random())", "<answer>1</answer>")
    assert (verdict.score, verdict.correct, verdict.formatted) == (None, False, False)
    assert verdict.facts["imports"] == ["random"]
    assert "code_game/predicted" not in verdict.metrics


def test_white_space_at_line_ends_is_no_part_of_a_prediction() -> None:
    assert prediction("<answer> 1 2 \n3</answer>", "1 2\n3  \n\n") == ("1 2 \n3", True)
    assert prediction("<answer>12\n3</answer>", "1 2\n3")[1] is False
    assert prediction("<answer>  55</answer>", "  55")[1] is True  # a blank in front must not defeat every opponent
    assert prediction("<answer>\n 1\n  2\n</answer>", " 1\n  2")[1] is True
    assert prediction("none", "none") == (None, False)


# ------------------------------------------------------------------------------------------------------------ rollouts


class Writer:
    """A backend that writes what it is told; the last is there first."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def generate(self, prompts: Sequence[Sequence[int]], *, on_done: Any = None, **_: Any) -> list[Completion]:
        assert len(self.texts) == len(prompts)
        done = [Completion((1,), tuple(text.encode()), (0.0,) * len(text), finished=True) for text in self.texts]
        for place in reversed(range(len(done))):
            on_done(place, done[place])
        return done


class Bytes:
    """A tokenizer whose tokens are bytes."""

    chat_template = None

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(ids).decode()


class Oracle:
    """An opponent that says 55 whatever it is asked."""

    def __init__(self) -> None:
        self.asked: list[Problem] = []

    def answer(self, problems: Sequence[Problem]) -> list[str]:
        self.asked = list(problems)
        return ["</think> <answer>55</answer>" for _ in problems]


def small_config(**changes: Any) -> Config:
    defaults: dict[str, Any] = {"task__name": "code_game", "rollout__max_prompt_length": 512}
    return load_config(config_text(**{**defaults, **changes}))


def test_valid_programs_are_put_to_the_opponent_and_judged_by_its_answer() -> None:
    config = small_config()
    task, oracle = game(), Oracle()
    texts = [
        FIBONACCI, "print('ab' * 3)\n```", "print(", FIBONACCI,
        "import time\nprint(time.time())", "x = 1", "print(5 * 11)", "",
    ]  # fmt: skip
    prompts = [Prompt(task.problem("train", index), (1,)) for index in (3, 7)]
    rewards = load_rewards(task, config)
    adversary = Adversary(task, rewards, Writer(texts), oracle, Bytes(), config)  # type: ignore[arg-type]
    samples = adversary.collect(5, [2, 9], prompts)
    found = [(sample.grade.verdict.reason, sample.grade.rewards["score"]) for sample in samples if sample]
    assert found == [
        ("predicted", -1.0), ("ok", 1.0), ("syntax_error", None), ("predicted", -1.0),
        ("forbidden_import", None), ("no_output", None), ("predicted", -1.0), ("no_code", None),
    ]  # fmt: skip
    assert [sample.text for sample in samples if sample] == texts
    assert [sample.prompt.problem.index for sample in samples if sample] == [3] * 4 + [7] * 4
    assert len(oracle.asked) == 4
    assert all(problem.prompt.endswith("\nAssistant: <think>") for problem in oracle.asked)
    assert f"What exactly does this Python program print?\n```python\n{FIBONACCI}\n```" in oracle.asked[0].prompt
    logged = means([sample.grade.verdict.metrics for sample in samples if sample])
    assert (logged["code_game/valid"], logged["code_game/predicted"]) == (0.5, 0.75)


def test_no_valid_program_and_nobody_is_asked() -> None:
    task, config = game(), small_config()
    adversary = Adversary(task, load_rewards(task, config), Writer(["print("] * 4), Oracle(), Bytes(), config)  # type: ignore[arg-type]
    samples = adversary.collect(0, [0], [Prompt(task.problem("train", 0), (1,))])
    assert [sum(filter(None, sample.grade.rewards.values())) for sample in samples if sample] == [0.0] * 4


@pytest.fixture(scope="module")
def tiny(make_root: Callable[[], Path]) -> tuple[Path, Policy]:
    root = make_root()
    return root, load_policy(small_config().model, root, torch.device("cpu"))


def test_the_task_is_adversarial() -> None:
    assert isinstance(game(), AdversarialTask)


def test_the_starting_model_answers_in_place_of_the_policy(tiny: tuple[Path, Policy]) -> None:
    """The opponent stays what it was while the policy changes; the policy's weights are its own again afterwards."""
    _, policy = tiny
    task, config = game(), small_config(rollout__max_completion_length=12)
    start = [parameter.detach().clone() for parameter in policy.trainable()]

    @contextmanager
    def frozen() -> Iterator[None]:
        own = [parameter.data for parameter in policy.trainable()]
        for parameter, value in zip(policy.trainable(), start, strict=True):
            parameter.data = value
        try:
            yield
        finally:
            for parameter, value in zip(policy.trainable(), own, strict=True):
                parameter.data = value

    question = task.question(referee(FIBONACCI, task.limits))
    opponent = Opponent(policy, 12, frozen)
    before = opponent.answer([question, question])
    assert before[0] == before[1]
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(torch.full_like(parameter, 0.3))
    changed = [parameter.detach().clone() for parameter in policy.trainable()]
    assert opponent.answer([question]) == before[:1]
    assert Opponent(policy, 12).answer([question]) != before[:1]
    assert all(torch.equal(a, b) for a, b in zip(policy.trainable(), changed, strict=True))
    with torch.no_grad():
        for parameter, value in zip(policy.trainable(), start, strict=True):
            parameter.copy_(value)
    adversary = Adversary(task, load_rewards(task, config), Writer([FIBONACCI] * 4), opponent, Bytes(), config)
    samples = adversary.collect(0, [0], [Prompt(task.problem("train", 0), (1,))])
    assert {sample.grade.verdict.facts["reply"] for sample in samples if sample} == {before[0]}


def test_another_model_answers_with_its_own_weights(tiny: tuple[Path, Policy]) -> None:
    root, policy = tiny
    config = small_config(task__opponent="models/tiny", rollout__max_completion_length=12)
    other = load_opponent(config, root, policy)
    assert other.model is not policy.model
    assert not any(parameter.requires_grad for parameter in other.model.parameters())
    question = game().question(referee(FIBONACCI, game().limits))
    assert Opponent(other, 12).answer([question]) == Opponent(policy, 12).answer([question])
    for name, message in (("models", "holds neither"), ("no/such/place/at/all", "is no model directory")):
        with pytest.raises(PolicyError, match=rf"task\.opponent '{name}' \(or start\): .*{message}"):
            load_opponent(small_config(task__opponent=name), root, policy)


def test_real_rollouts_of_the_tiny_model(tiny: tuple[Path, Policy]) -> None:
    root, policy = tiny
    task, config = game(), small_config(task__opponent="models/tiny", rollout__generation_batch_size=3)
    backend = TransformersBackend(policy.model, policy.tokenizer, stop=task.stop)
    adversary = make_adversary(task, load_rewards(task, config), backend, policy, config, root, nullcontext)
    problems = [task.problem("train", index) for index in range(2)]
    ids = policy.tokenizer([problem.prompt for problem in problems])["input_ids"]
    samples = adversary.collect(0, [0, 1], [Prompt(p, tuple(i)) for p, i in zip(problems, ids, strict=True)])
    assert len(samples) == 8
    for sample in samples:
        assert sample is not None
        assert sample.grade.verdict.reason
        assert (sample.grade.rewards["score"] is None) == (not sample.grade.verdict.formatted)
