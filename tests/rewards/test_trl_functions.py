"""Reward functions written for TRL: TRL's own beside TRL's own call, users' by their signature, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import schema
from grpo_train.rewards import Rewards, RewardValues
from grpo_train.rewards.signatures import kind_of
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict

VERDICT = Verdict(True, True, "ok", "1/3")
ROW = {"solution": r"$\frac{1}{3}$", "answer": "1/3", "level": 3}
TEXT = Problem(0, "A third?", "1/3", "A third?", data=ROW)
CHAT = Problem(1, "A third?", "1/3", "A third?", (("system", "Be brief."), ("user", "A third?")), ROW)
UNREADABLE = Problem(2, "A third?", "1/3", "A third?", CHAT.messages, {**ROW, "solution": "no formula here"})
COMPLETIONS = [
    r"<think>It is \boxed{\frac{2}{3}}.</think> It is \boxed{\frac{1}{3}}",
    r"<think>It is so.</think>It is \boxed{\frac{1}{2}}",
    r"It is \boxed{\frac{1}{3}}",
    r"<think>It is \boxed{\frac{1}{3}}",
    "",
    "a a a a a a a a a a a a a",
]

MADE = """
from trl.rewards import get_cosine_scaled_reward, get_repetition_penalty_reward, get_soft_overlong_punishment

cosine = get_cosine_scaled_reward(max_len=12)
repetition = get_repetition_penalty_reward(ngram_size=2)
overlong = get_soft_overlong_punishment(max_completion_len=12, soft_punish_cache=6)
"""
OWN = r'''
import asyncio, math, os, re, signal, time

def texts(completions, **kwargs):
    return [float(all(isinstance(text, str) for text in completions))] * len(completions)

def messages(prompts, completions: list[list[dict[str, str]]], **kwargs):
    assert prompts[0][-1]["role"] == "user"
    return [len(each[0]["content"]) for each in completions]

def rank_in_group(completions, **kwargs):
    return [sorted(map(len, completions)).index(len(text)) for text in completions]

def only_levels(solution, level):
    return [None if number > 2 else 1.0 for number in level]

def own_kind(attempt, verdict):
    return float(verdict.correct)

gate = None

async def together(completions, **kwargs):
    """Returns only when the calls of two prompts wait at once."""
    global gate
    if gate is None:
        gate = asyncio.Event()
        await gate.wait()
    gate.set()
    return [1.0] * len(completions)

class Judge:
    async def __call__(self, completions, **kwargs):
        await asyncio.sleep(0)
        return [0.5] * len(completions)

judge = Judge()

async def own_async(attempt, verdict):
    await asyncio.sleep(0)
    return 0.25

def raises(completions, **kwargs):
    return [1 / (len(completions) - 2)]

def no_column(completions, solutoin, **kwargs):
    return [1.0] * len(completions)

def one_value(completions, **kwargs):
    return [1.0]

def a_string(completions, **kwargs):
    return "1.0"

def strings(completions, **kwargs):
    return ["1.0"] * len(completions)

def not_a_number(completions, **kwargs):
    return [1.0, math.nan]

def nothing(completions, **kwargs):
    pass

def hangs(completions, **kwargs):
    return [float(bool(re.match(r"(a+)+$", "a" * 64 + "b")))]  # holds the interpreter: no other thread can run

async def waits(completions, **kwargs):
    await asyncio.Event().wait()

def dies(attempt, verdict):
    os.kill(os.getpid(), signal.SIGKILL)

def three(first, second, third):
    return 1.0
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(OWN)
    return str(file)


def attempts_at(problem: Problem, completions: list[str]) -> list[Attempt]:
    ids = [tuple(range(100, 100 + len(text.split()))) if "a a" not in text else (7,) * 13 for text in completions]
    return [
        Attempt(problem, text, length=len(ids), key=f"0/0/{slot}", ids=ids)
        for slot, (text, ids) in enumerate(zip(completions, ids, strict=True))
    ]


def loaded(*names: str, failure_file: Path | None = None, **task: Any) -> Rewards:
    config = schema.TaskConfig(rewards=list(names), **task)
    return Rewards(config, (), max_completion_length=100, seed=0, failure_file=failure_file)


def graded(rewards: Rewards, *problems: Problem, completions: list[str]) -> list[RewardValues]:
    attempts = [attempt for problem in problems for attempt in attempts_at(problem, completions)]
    started = [rewards.start(attempt, VERDICT) for attempt in attempts]
    return rewards.complete(started, attempts, [VERDICT] * len(attempts), len(completions))


def as_trl_calls(problem: Problem, completions: list[str]) -> dict[str, Any]:
    """The arguments of GRPOTrainer._calculate_rewards for a conversational dataset."""
    count = len(completions)
    return {
        "prompts": [[{"role": role, "content": text} for role, text in problem.messages]] * count,
        "completions": [[{"role": "assistant", "content": text}] for text in completions],
        "completion_ids": [list(attempt.ids) for attempt in attempts_at(problem, completions)],
        **{key: [value] * count for key, value in problem.data.items()},
    }


def test_functions_of_trl_have_their_own_values(tmp_path: Path) -> None:
    import trl.rewards as of_trl

    functions = {
        "accuracy_reward": of_trl.accuracy_reward,
        "reasoning_accuracy_reward": of_trl.reasoning_accuracy_reward,
        "think_format_reward": of_trl.think_format_reward,
        "cosine": of_trl.get_cosine_scaled_reward(max_len=12),
        "repetition": of_trl.get_repetition_penalty_reward(ngram_size=2),
        "overlong": of_trl.get_soft_overlong_punishment(max_completion_len=12, soft_punish_cache=6),
    }
    exported = [name for names in of_trl._import_structure.values() for name in names]
    assert len(functions) == len(exported), "a function of TRL is missing here"
    made = tmp_path / "made.py"
    made.write_text(MADE)
    named = [f"trl.rewards:{name}" if name.endswith("_reward") else f"{made}:{name}" for name in functions]
    rewards = loaded(*named)
    assert rewards.names == list(functions)
    for problem in (CHAT, UNREADABLE):
        found = graded(rewards, problem, completions=COMPLETIONS)
        for name, function in functions.items():
            expected = function(**as_trl_calls(problem, COMPLETIONS))
            assert [each[name] for each in found] == expected, name
    texts = graded(rewards, TEXT, completions=COMPLETIONS)  # the annotations of TRL's functions ask for messages
    messages = graded(rewards, CHAT, completions=COMPLETIONS)
    assert texts == messages
    assert len({each["accuracy_reward"] for each in texts}) == 2
    rewards.close()


def test_users_functions_are_called_as_by_trl(own: str) -> None:
    names = ["texts", "messages", "rank_in_group", "only_levels", "own_kind", "together", "judge", "own_async"]
    named = [f"trl:{own}:{name}" if name == "only_levels" else f"{own}:{name}" for name in names]
    rewards = loaded("accuracy", *named)
    found = graded(rewards, TEXT, replaced(TEXT, level=2), completions=["aaa", "b", "cc"])
    assert [list(each) for each in found] == [["accuracy", *names]] * 6
    values = {name: [each[name] for each in found] for name in names}
    assert values == {
        "texts": [1.0] * 6,
        "messages": [3.0, 1.0, 2.0] * 2,
        "rank_in_group": [2.0, 0.0, 1.0] * 2,
        "only_levels": [None] * 3 + [1.0] * 3,  # its two parameters would fit ours, too: hence the prefix
        "own_kind": [1.0] * 6,
        "together": [1.0] * 6,
        "judge": [0.5] * 6,
        "own_async": [0.25] * 6,
    }
    assert rewards(attempts_at(TEXT, ["a"])[0], VERDICT)["rank_in_group"] == 0.0
    rewards.close()


def replaced(problem: Problem, **columns: Any) -> Problem:
    return Problem(9, problem.prompt, problem.answer, problem.question, problem.messages, {**ROW, **columns})


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("raises", "reward_raised", r"'raises' raised ZeroDivisionError: division by zero \({own}:{line}\)"),
        ("no_column", "bad_task", r"'no_column' needs the argument 'solutoin', .* did you mean solution\? \({own}:"),
        ("one_value", "bad_task", r"'one_value' returned 1 values for 2 completions; expected one for each \({own}:"),
        ("a_string", "bad_task", r"'a_string' returned '1\.0'; expected a list of 2 numbers \({own}:"),
        ("strings", "bad_task", r"'strings' returned '1\.0' for completion 1 of 2; expected a finite number or None"),
        ("not_a_number", "bad_task", r"'not_a_number' returned 'nan' for completion 2 of 2; expected a finite"),
        ("nothing", "bad_task", r"'nothing' returned 'None'; expected a list of 2 numbers"),
        ("hangs", "reward_timeout", r"'hangs' did not return within 2 s \(task\.reward_timeout\) \({own}:\d+\)"),
        ("waits", "reward_timeout", r"'waits' did not return within 2 s .* \({own}:\d+\)"),
        ("dies", "reward_raised", r"'dies' ended its process, which was killed by signal 9 .* \({own}:\d+\)"),
    ],
)
def test_failures_save_the_completions(own: str, tmp_path: Path, name: str, code: str, message: str) -> None:
    file = tmp_path / "failed.json"
    rewards = loaded(f"{own}:{name}", failure_file=file, reward_timeout=2.0 if name in ("hangs", "waits") else 120.0)
    line = 1 + OWN.splitlines().index("    return [1 / (len(completions) - 2)]")
    with pytest.raises(TaskError, match=message.format(own=own, line=line)) as error:
        graded(rewards, TEXT, completions=["one", "two"])
    assert error.value.code == code
    assert str(error.value).endswith(f"; its completions are in {file}")
    record = json.loads(file.read_text())
    assert record["function"] == name
    assert [each["completion"] for each in record["attempts"]] == (["one"] if name == "dies" else ["one", "two"])
    assert record["columns"]["level"] == 3
    assert ("ZeroDivisionError" in record["traceback"]) == (name == "raises")
    rewards.close()


def test_a_failure_does_not_end_the_functions(own: str) -> None:
    rewards = loaded(f"{own}:dies", f"{own}:own_kind")
    for _ in range(2):
        with pytest.raises(TaskError, match="'dies' ended its process"):
            rewards(attempts_at(TEXT, ["a"])[0], VERDICT)
    rewards.close()


def test_other_signatures_are_errors(own: str) -> None:
    with pytest.raises(TaskError, match=r"'three' takes \(first, second, third\); expected \(attempt, verdict\) or"):
        loaded(f"{own}:three")


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda attempt, verdict: 0.0, "attempt"),
        (lambda prompts, **columns: [], "trl"),
        (lambda texts, **columns: [], "trl"),
        (dict, "attempt"),
    ],
)
def test_the_signature_tells_the_kind(function: Any, kind: str) -> None:
    assert kind_of(function, "f") == kind
    with pytest.raises(TaskError, match=r"'f' takes \(one\); expected"):
        kind_of(lambda one: 0.0, "f")


def test_completions_that_cannot_be_saved(own: str, tmp_path: Path) -> None:
    rewards = loaded(f"{own}:raises", failure_file=tmp_path / "removed" / "failed.json")
    with pytest.raises(TaskError, match="; its completions cannot be saved: No such file or directory"):
        graded(rewards, TEXT, completions=["one", "two"])
    rewards.close()


def test_a_checkpoint_and_a_reward_of_ours_train_in_trl(tiny_model: Path, tmp_path: Path) -> None:
    """As docs/scaling.md says: the saved model loads as it is, and a reward is a plain function."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from grpo_train.rewards.functions import tag_count
    from grpo_train.run_dir import create_run
    from tests.support.saving import make_trainer

    run = create_run(tmp_path / "root", {}, "one")
    make_trainer(tiny_model, "none").save(run, 1)
    seen: list[str] = []

    def tags(completions: list[str], **kwargs: Any) -> list[float]:
        seen.extend(completions)
        return [tag_count(text) for text in completions]

    trainer = GRPOTrainer(
        str(run.training_state / "step_1" / "model"),
        reward_funcs=tags,  # type: ignore[arg-type]
        train_dataset=Dataset.from_dict({"prompt": ["1 + 1 =", "2 + 3 ="]}),
        args=GRPOConfig(
            output_dir=str(tmp_path / "trl"), max_steps=1, per_device_train_batch_size=4, num_generations=2,
            max_completion_length=8, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", disable_tqdm=True,
        ),
    )  # fmt: skip
    trainer.train()
    assert len(seen) == 4
    assert trainer.state.global_step == 1
