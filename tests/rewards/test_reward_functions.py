"""Built-in and user-defined reward functions, negative controls."""

from __future__ import annotations

import itertools
import math
import random
import sys
from pathlib import Path

import pytest

from grpo_train.config import schema
from grpo_train.rewards import Rewards, RewardValues, load_rewards
from grpo_train.rewards.functions import correct_and_short, reasoning, tag_count
from grpo_train.rewards.number import judge_number
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict, load_task
from grpo_train.tasks.shared.graders import grader_of
from grpo_train.train.preflight import _absolute

PROBLEM = Problem(0, "9+9=", "18", "9+9")
RIGHT = Verdict(True, True, "ok", "18", flexible=True, score=0.75)
WRONG = Verdict(False, True, "wrong", "17", flexible=False, score=-1.0)
UNFORMATTED = Verdict(False, False, "no_answer_tag", None, flexible=True)


def attempt(completion: str = "so</think> <answer>18</answer>", *, length: int = 50, key: str = "0/0/0") -> Attempt:
    return Attempt(PROBLEM, completion, length=length, key=key)


def rewards_of(*names: str, seed: int = 0, **task: object) -> Rewards:
    config = schema.TaskConfig(rewards=list(names), **task)  # type: ignore[arg-type]
    return Rewards(config, ("accuracy",), max_completion_length=100, seed=seed)


def values(rewards: Rewards, *verdicts: Verdict) -> list[float | None]:
    """Values of a single reward function."""
    return [value for verdict in verdicts for value in rewards(attempt(), verdict).values()]


def test_accuracy_is_the_default() -> None:
    rewards = rewards_of()
    assert rewards.names == ["accuracy"]
    assert values(rewards, RIGHT, WRONG, UNFORMATTED) == [2.0, 0.0, 0.0]


def test_accuracy_values_come_from_the_config() -> None:
    rewards = rewards_of("accuracy", correct_reward=1.0, incorrect_reward=-0.5)
    assert values(rewards, RIGHT, WRONG) == [1.0, -0.5]


def test_accuracy_of_a_number() -> None:
    rewards = rewards_of("accuracy")

    def judged(completion: str, truncated: bool = False) -> tuple[Verdict, RewardValues]:
        made = Attempt(PROBLEM, completion, truncated)
        return (verdict := judge_number(made)), rewards(made, verdict)

    right, wrong = judged("so</think> <answer>18</answer>"), judged("so</think> <answer>17</answer>")
    cut = judged("so</think> <answer>18</answer>", truncated=True)
    assert [values["accuracy"] for _, values in (right, wrong, cut)] == [2.0, 0.0, 0.0]
    assert (right[0].correct, right[0].formatted) == (True, True)
    assert (wrong[0].correct, wrong[0].formatted, wrong[0].answer) == (False, True, "17")
    assert (cut[0].correct, cut[0].formatted, cut[0].reason) == (False, False, "truncated")
    assert cut[0].flexible


def test_every_function_is_reported_by_name() -> None:
    rewards = rewards_of("accuracy", "format", "correct_and_short", "score", "reasoning", "tag_count")
    assert rewards.names == ["accuracy", "format", "correct_and_short", "score", "reasoning", "tag_count"]
    assert rewards(attempt(), RIGHT) == {
        "accuracy": 2.0, "format": 1.0, "correct_and_short": 0.75, "score": 0.75, "reasoning": 0.0, "tag_count": 1.0,
    }  # fmt: skip
    assert rewards(attempt(), WRONG)["format"] == 1.0
    unformatted = rewards(attempt(), UNFORMATTED)
    assert unformatted["format"] == 0.0
    assert unformatted["score"] is None
    assert unformatted["tag_count"] == 1.0


def test_tag_count_counts_tags_that_appear_once() -> None:
    assert tag_count("1</think><answer>2</answer>") == tag_count("</answer> </think> <answer>") == 1.0
    assert tag_count("1</think><answer>2") == pytest.approx(2 / 3)
    assert tag_count("</think></think><answer></answer><answer>") == pytest.approx(1 / 3)
    assert tag_count("<think>2") == tag_count("") == 0.0


@pytest.mark.parametrize("grader", ["number", "text", "none"])
@pytest.mark.parametrize(
    ("completion", "formatted"),
    [("<answer>4</answer>", True), ("so</think> <answer>4</answer>", True), ("so <answer>4</answer>", False)],
)
def test_thoughts_that_the_prompt_closes_count(grader: str, completion: str, formatted: bool) -> None:
    attempt = Attempt(Problem(0, "", "4", ""), completion, thoughts_closed=True)
    verdict = grader_of(grader).judge(attempt)
    assert (verdict.formatted, verdict.correct) == (formatted, formatted and grader != "none")
    assert tag_count(attempt.text) == 1.0
    assert not grader_of(grader).judge(Attempt(attempt.problem, "<answer>4</answer>")).formatted


def test_correct_and_short_falls_with_length() -> None:
    assert [correct_and_short(RIGHT, length, 100) for length in (0, 50, 100, 200)] == [1.0, 0.75, 0.5, 0.5]
    assert correct_and_short(WRONG, 0, 100) == 0.0


def test_reasoning_does_not_pay_for_padding() -> None:
    step = "Then {} eggs are left of the {} that she had that morning"
    steps = ".\n".join(step.format(count, count + 3) for count in range(6))
    assert reasoning(f"<think>{steps}</think> <answer>18</answer>") == 1.0
    assert reasoning(f"{steps}") == 0.0  # no </think>
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


USER_CODE = """
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
def huge(attempt, verdict):
    return -1e300
def endless(attempt, verdict):
    return math.inf
def text(attempt, verdict):
    return "1.0"
def listed(attempt, verdict):
    return [1.0]
not_a_function = 3
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    file = tmp_path / "my_rewards.py"
    file.write_text(USER_CODE)
    return file


def test_functions_from_a_user_file(user_file: Path) -> None:
    rewards = rewards_of("accuracy", *(f"{user_file}:{name}" for name in ("short", "whole", "agrees")))
    assert rewards.names == ["accuracy", "short", "whole", "agrees"]
    assert rewards(attempt(length=5), RIGHT) == {"accuracy": 2.0, "short": 1.0, "whole": 3.0, "agrees": 1.0}
    long = rewards(attempt(length=50), WRONG)
    assert long == {"accuracy": 0.0, "short": None, "whole": 3.0, "agrees": 0.0}


def test_functions_from_a_module_in_the_cwd(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(user_file.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert rewards_of("my_rewards:whole")(attempt(), WRONG) == {"whole": 3.0}


@pytest.mark.parametrize(
    "name",
    [
        "{0}/score.py:score",
        "trl:{0}/score.py:score",
        "score:score",
        "{0}/pkg_of_score/deep/score.py:score",
        "pkg_of_score.deep.score:score",
        "bare_of_score.score:score",
    ],
)
def test_imports_of_a_user_file_work_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By the name that a run records at its launch."""
    trl = "def score(completions, **columns): return [three()] * len(completions)\n"
    sources = {
        "score.py": f"from helper_of_score import three\n{trl}",
        "helper_of_score.py": "def three(): return 3.0\n",
        "pkg_of_score/__init__.py": "",
        "pkg_of_score/deep/__init__.py": "",
        "pkg_of_score/deep/score.py": f"from .near import three\nfrom pkg_of_score.far import three\n{trl}",
        "pkg_of_score/deep/near.py": "three = None\n",
        "pkg_of_score/far.py": "from helper_of_score import three\n",
        "bare_of_score/score.py": f"from bare_of_score.near import three\n{trl}",
        "bare_of_score/near.py": "def three(): return 3.0\n",
    }
    for file, text in sources.items():
        (tmp_path / "launch" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "launch" / file).write_text(text)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.chdir(tmp_path / "launch")
    part = schema.TaskConfig(name="data", rewards=[name.format(".")])
    (recorded,) = _absolute(part, tmp_path)["rewards"]
    assert str(tmp_path) in recorded
    monkeypatch.setattr(sys, "path", [each for each in sys.path if str(tmp_path) not in each])
    monkeypatch.chdir(tmp_path)
    rewards = rewards_of(recorded)
    started = [rewards.start(attempt(), RIGHT)]
    assert rewards.complete(started, [attempt()], [RIGHT], 1)[0] == {"score": 3.0}
    rewards.close()


def test_installed_modules_keep_their_names(tmp_path: Path) -> None:
    for name in ("trl.rewards:accuracy_reward", "json:dumps", "no_such_module:f", "accuracy"):
        part = schema.TaskConfig(name="data", rewards=[name], grader="number")
        assert _absolute(part, tmp_path)["rewards"] == [name]


def test_a_library_that_hides_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text("import json\ndef f(attempt, verdict): return json.x\n")
    with pytest.raises(TaskError, match=r"mine\.py imports 'json', which is .*__init__\.py here; rename .*json\.py"):
        rewards_of(f"{tmp_path / 'mine.py'}:f")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acuracy", r"task\.rewards: unknown reward function 'acuracy'; did you mean accuracy\? .*file.py:function"),
        ("xyz", r"task\.rewards: unknown reward function 'xyz'; known: accuracy, format, .*file.py:function"),
        ("{file}:nothing", r"task\.rewards: no function 'nothing' in .*my_rewards\.py; known: short, whole, agrees"),
        ("{file}:not_a_function", r"task\.rewards: no function 'not_a_function' in "),
        ("/no/such/file.py:f", r"task\.rewards: .*no such file: /no/such/file\.py"),
        ("no_such_module:f", r"task\.rewards: .*no module 'no_such_module'"),
        ("trl.rewards:acuracy_reward", r"no function 'acuracy_reward' in trl\.rewards; did you mean accuracy_reward\?"),
        (":f", r"task\.rewards: ':f'"),
    ],
)
def test_unknown_functions_are_errors(user_file: Path, name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        rewards_of(name.format(file=user_file))


def test_import_errors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(TaskError, match=r"cannot import .*leaves\.py: SystemExit: 3"):
        rewards_of(f"{tmp_path / 'leaves.py'}:f")
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    with pytest.raises(TaskError, match=r"cannot import .*broken\.py: ModuleNotFoundError: .*no_such_library"):
        rewards_of(f"{tmp_path / 'broken.py'}:f")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fails", "'fails' raised ZeroDivisionError: division by zero"),
        ("nan", "'nan' returned 'nan'; expected a finite number or None"),
        ("endless", "'endless' returned 'inf'; expected"),
        ("huge", r"'huge' returned -1e\+300; rewards are at most 1e\+15 in size"),
        ("text", "'text' returned '1.0'; expected"),
        ("listed", r"'listed' returned '\[1.0\]'; expected"),
    ],
)
def test_non_finite_rewards_are_errors(user_file: Path, function: str, message: str) -> None:
    with pytest.raises(TaskError, match=rf"task\.rewards: {message}"):
        rewards_of(f"{user_file}:{function}")(attempt(), RIGHT)


@pytest.mark.parametrize("score", [1e300, -1e16, math.inf, math.nan])
def test_huge_scores_of_a_grader_are_errors(score: float) -> None:
    verdict = Verdict(True, True, "ok", "1", score=score)
    with pytest.raises(TaskError, match=r"task\.rewards: 'score' is .*; expected None or at most 1e\+15 in size"):
        rewards_of("score")(Attempt(Problem(0, "", "", ""), ""), verdict)


def test_duplicate_names_are_errors() -> None:
    with pytest.raises(TaskError, match="duplicate reward function 'accuracy'"):
        rewards_of("accuracy", "accuracy")


def test_weights_of_unused_functions_are_errors() -> None:
    task = load_task(schema.TaskConfig(name="addition"))
    config = schema.Config.model_validate(
        {"task": {"name": "addition"}, "algorithm": {"reward_weights": {"format": 1}}}
    )
    with pytest.raises(
        TaskError, match=r"algorithm\.reward_weights: 'format' is not a reward function of this run; known: accuracy"
    ):
        load_rewards(task, config)


# ------------------------------------------------------------------------------------------------ negative controls


def test_random_rewards_depend_on_seed_and_key_only() -> None:
    def drawn(rewards: Rewards, completion: str, verdict: Verdict) -> dict[str, float | None]:
        return {key: rewards(attempt(completion, key=key), verdict)["random"] for key in keys}

    rewards = rewards_of("accuracy", reward_control="random", seed=3)
    assert rewards.names == ["random"]
    keys = [f"{buffer}/{group}/{sample}" for buffer in range(10) for group in range(10) for sample in range(10)]
    first = drawn(rewards, "a completion", RIGHT)
    assert set(first.values()) == {0.0, 2.0}
    assert 0.4 < list(first.values()).count(2.0) / len(keys) < 0.6
    random.Random(0).shuffle(keys)
    again = rewards_of("format", reward_control="random", seed=3)
    random.seed(99)
    assert drawn(again, "another", WRONG) == first
    assert drawn(rewards_of(reward_control="random", seed=4), "a completion", RIGHT) != first


def test_inverted_pays_for_wrong_answers() -> None:
    rewards = rewards_of(reward_control="inverted", correct_reward=1.0, incorrect_reward=-1.0)
    assert rewards.names == ["inverted"]
    assert values(rewards, RIGHT, WRONG, UNFORMATTED) == [-1.0, 1.0, 1.0]


def test_format_only_pays_for_tags() -> None:
    rewards = rewards_of(reward_control="format_only")
    assert rewards.names == ["format_only"]
    assert values(rewards, RIGHT, WRONG, UNFORMATTED) == [2.0, 2.0, 0.0]
