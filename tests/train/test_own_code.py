"""docs/own-code.md: its examples train, evaluate and resume from a temporary directory; what is wrong is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_train.backup.needs import needs_of
from grpo_train.backup.record import read_record
from grpo_train.config.loading import load_config
from grpo_train.config.schema import Config
from grpo_train.rewards.types import Attempt, TaskError
from grpo_train.rollout import Completion
from grpo_train.rollout.own import OwnBackend, load_backend
from grpo_train.run_dir import RunDir
from grpo_train.tasks import load_task
from grpo_train.train.preflight import check_start
from grpo_train.train.worker import main
from tests.support.engine import MICRO, REPOSITORY, config_text, grpo_train, resume_here, run_of, train_here

PAGE = (REPOSITORY / "docs" / "own-code.md").read_text(encoding="utf-8")
FILES = {found[1]: found[0] for found in re.findall(r"```python\n(# (\S+\.py)\n.*?)```", PAGE, re.DOTALL)}


@pytest.fixture
def mine(micro_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the page's files, in which a config is checked."""
    folder = micro_root / "mine"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


def checked(root: Path, **changes: Any) -> Config:
    return check_start(load_config(config_text(MICRO, **changes)), root, None)


def trained(root: Path, config: Config) -> RunDir:
    cfg = root / "checked.yaml"
    cfg.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return train_here(root, cfg, "own", "--until", "2")


def test_the_page_shows_every_door() -> None:
    assert set(FILES) == {"my_task.py", "my_grader.py", "my_backend.py"}
    for key in ("task.name", "task.rewards", "task.grader", "algorithm.loss_type", "rollout.backend"):
        assert f"| `{key}`" in PAGE


def test_a_backend_trains_resumes_anywhere_and_evaluates(
    micro_root: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = checked(micro_root, rollout__backend="my_backend.py:one_by_one", run__total_steps=4)
    assert config.rollout.backend == f"{mine}/my_backend.py:one_by_one"
    monkeypatch.chdir("/")
    run = trained(micro_root, config)
    resume_here(run, total=4)
    rows = list(run.read_log("train_log.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for key in ("mismatch/ratio_min", "mismatch/ratio_max"):  # of its log-probabilities and the trainer's
        found = [row[key] for row in rows if key in row]
        assert found
        assert found == pytest.approx([1.0] * len(found), abs=1e-4)
    done = grpo_train("eval", "--training-run", "own", "--num-problems", "4", root=micro_root)
    assert done.returncode == 0, done.stderr


def test_a_task_trains(micro_root: Path, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = checked(micro_root, task__name="my_task.py:backwards", task__options={"digits": 2})
    assert config.task.name == f"{mine}/my_task.py:backwards"
    assert load_task(config.task).size("test") == 30
    monkeypatch.chdir("/")
    run = trained(micro_root, config)
    assert [row["step"] for row in run.read_log("train_log.jsonl")] == [1, 2]


def test_a_grader_judges(micro_root: Path, mine: Path) -> None:
    (mine / "words").mkdir()
    for split, count in (("train", 16), ("test", 4)):
        rows = [{"prompt": f"One, two: {split} {number}.", "answer": "two one"} for number in range(count)]
        (mine / "words" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = checked(
        micro_root,
        task__name="data",
        task__path="words",
        task__grader="my_grader.py:any_order",
        rollout__max_prompt_length=160,
    )
    assert config.task.grader == f"{mine}/my_grader.py:any_order"
    kind = load_task(config.task)
    for text, correct in (("<answer>one two</answer>", True), ("<answer>one</answer>", False)):
        assert kind.judge(Attempt(kind.problem("train", 0), text)).correct is correct
    assert [row["step"] for row in trained(micro_root, config).read_log("train_log.jsonl")] == [1, 2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def other(policy, stop, config):\n    pass\n", "no function 'make'"),
        ("def make(policy):\n    pass\n", "must take (policy, stop, config)"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "bad.py").write_text(body)
    with pytest.raises(TaskError, match=re.escape(message)) as raised:
        load_backend(f"{tmp_path}/bad.py:make")
    assert str(raised.value).startswith("rollout.backend: ")


def test_a_launch_tries_a_backend(micro_root: Path, mine: Path) -> None:
    (mine / "bad.py").write_text("def make(policy):\n    pass\n")
    with pytest.raises(TaskError) as raised:
        checked(micro_root, rollout__backend="bad.py:make")
    assert str(raised.value).startswith("rollout.backend: ")


BROKEN = f"""{FILES["my_task.py"]}
class Broken(Backwards):
    def judge(self, attempt):
        if attempt.problem.index AT_LEAST 0:
            raise KeyError("no such verdict")
        return super().judge(attempt)
def broken(config):
    return Broken(config=config)
"""


def test_a_launch_judges_with_a_task_and_a_grader(micro_root: Path, mine: Path) -> None:
    (mine / "broken.py").write_text(BROKEN.replace("AT_LEAST", ">="))
    with pytest.raises(TaskError, match=r"task.name: '.*broken' raised KeyError: 'no such verdict' \(.*py:\d+\)"):
        checked(micro_root, task__name="broken.py:broken")
    (mine / "words.jsonl").write_text("".join(f'{{"prompt": "{n}", "answer": "one"}}\n' for n in range(20)))
    (mine / "strict.py").write_text("def strict(attempt):\n    return 1 / 0\n")
    with pytest.raises(TaskError, match=r"task.grader: it fails on the gold answer .* ZeroDivisionError"):
        checked(micro_root, task__name="data", task__path="words.jsonl", task__grader="strict.py:strict")


def test_an_error_of_a_task_names_it(micro_root: Path, mine: Path) -> None:
    (mine / "broken.py").write_text(BROKEN.replace("AT_LEAST", ">"))  # the launch tries the first problem
    config = checked(micro_root, task__name="broken.py:broken")
    cfg = micro_root / "checked.yaml"
    cfg.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert main(["--cfg", str(cfg), "--root", str(micro_root), "--run-name", "own", "--until", "2"]) == 1
    report = json.loads((run_of(micro_root, "own").path / "control" / "error_rank0.json").read_text())
    assert report["message"].startswith(f"task.name: '{mine}/broken.py:broken' raised KeyError")


def test_a_backup_names_the_files(micro_root: Path, mine: Path) -> None:
    run = RunDir(micro_root / "training_runs" / "own")
    run.path.mkdir(parents=True)
    config = {
        "task": {"name": f"{mine}/my_task.py:backwards", "rewards": ["trl:/elsewhere/my_reward.py:brief", "accuracy"]},
        "rollout": {"backend": "native"},
    }
    run.config_file.write_text(yaml.safe_dump(config))
    assert needs_of(run, read_record(run.path)).data == (f"{mine}/my_task.py", "/elsewhere/my_reward.py")


HEAD = """from grpo_train.rollout import Completion
def good(prompt):
    return Completion(tuple(prompt), (5, 6), (-1.0, -0.5), True)
class Made:
    def sync(self): pass
    def generate(self, prompts, **others):
        """


def of(tmp_path: Path, text: str) -> OwnBackend:
    path = tmp_path / "made.py"
    path.write_text(text)
    name = f"{path}:make"
    load_backend(name)
    return OwnBackend(name, None, (), Config())  # type: ignore[arg-type]


def sample(backend: OwnBackend, **others: Any) -> list[Completion]:
    options = {"seeds": [1, 2], "max_completion_length": 4, "temperature": 1.0, **others}
    return backend.generate([[1, 2], [3]], **options)


@pytest.mark.parametrize(
    ("generate", "message"),
    [
        ("return None", "generate returned NoneType, not a list of 2 completions"),
        ("return [good(prompts[0])]", "generate returned 1 completions, not a list of 2"),
        ("return [(1,), (2,)]", "completion 0: tuple, not a Completion"),
        ("return [good(p) for p in prompts[::-1]]", "completion 0: its prompt_ids are not those of the prompt"),
        ("return [Completion(tuple(p), (), (), True) for p in prompts]", "completion 0: it has no tokens"),
        ("return [Completion(tuple(p), (5,), (), True) for p in prompts]", "1 tokens have 0 log-probabilities"),
        ("return [Completion(tuple(p), (5,), (0.5,), True) for p in prompts]", "numbers of 0 or less"),
        ("return [Completion(tuple(p), (5,), (float('nan'),), True) for p in prompts]", "numbers of 0 or less"),
        ("return 1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("others['on_done'](1, good(prompts[0]))", "completion 1: its prompt_ids are not those"),
    ],
)
def test_a_rollout_is_checked(tmp_path: Path, generate: str, message: str) -> None:
    backend = of(tmp_path, f"{HEAD}{generate}\ndef make(policy, stop, config):\n    return Made()\n")
    with pytest.raises(TaskError, match=re.escape(message)):
        sample(backend)


def test_what_is_made_must_be_a_backend(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="returns int, which has no sync and no generate"):
        of(tmp_path, "def make(policy, stop, config):\n    return 3\n")


@pytest.mark.parametrize("reports", [True, False])
def test_each_completion_is_reported_once(tmp_path: Path, reports: bool) -> None:
    taken = "on_done" if reports else "batch_size=0"
    early = "on_done(1, good(prompts[1]))\n        " if reports else ""
    text = HEAD.replace("**others", f"*, seeds, max_completion_length, temperature, {taken}")
    made = f"{text}{early}return [good(p) for p in prompts]\ndef make(policy, stop, config):\n    return Made()\n"
    found: list[int] = []
    done = sample(of(tmp_path, made), on_done=lambda index, completion: found.append(index))
    assert found == ([1, 0] if reports else [0, 1])
    assert [completion.prompt_ids for completion in done] == [(1, 2), (3,)]
