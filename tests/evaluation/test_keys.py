"""Cache keys: they change with everything samples and verdicts depend on, and with nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import Config, TaskConfig
from grpo_train.evaluation.plan import plan_evaluation
from grpo_train.evaluation.request import EvalRequest
from grpo_train.evaluation.results import keys
from grpo_train.rewards.user_code import _import_file
from grpo_train.rollout import seed_of
from grpo_train.run_dir import RunDir
from grpo_train.tasks import load_task
from grpo_train.tasks.addition import AdditionTask
from grpo_train.tasks.shared.graders import grader_of
from tests.support.evaluating import SAMPLED


def test_key_changes_with_every_relevant_setting(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(step: int = 2, **request: Any) -> dict[str, Any]:
        plan, _ = plan_evaluation(run.root, EvalRequest("trained", steps=str(step), **{**SAMPLED, **request}))
        config = keys.Config.model_validate(plan.config)
        task = AdditionTask(name="addition", label="addition")
        problems = [task.problem(config.eval.split, index) for index in plan.indices]
        return keys.key_of(plan, plan.targets[0], config, task, problems)

    first = key()
    assert key() == first
    assert key(batch_size=64) == first == key(nproc=2, timeout=5.0)
    for other in ({"step": 1}, {"temperature": 0.5}, {"top_p": 0.9}, {"num_samples": 3}, {"num_problems": 7},
                  {"max_completion_length": 9}, {"split": "train"}):  # fmt: skip
        assert key(**other)["samples"] != first["samples"], other
        assert key(**other)["grading"] == first["grading"], other
    keys.folder_key.cache_clear()
    tokenizer = next((run.root / "models" / "tiny").glob("tokenizer.json"))
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert key()["samples"]["weights"] != first["samples"]["weights"]
    keys.folder_key.cache_clear()
    found = key()
    monkeypatch.setattr(keys, "SAMPLING", keys.SAMPLING + 1)
    assert key()["samples"] != found["samples"]


def test_grader_key_covers_imported_sources(tmp_path: Path) -> None:
    files: dict[Path, None] = {}
    keys._gather(keys.PACKAGE / "tasks" / "addition.py", files, set())
    names = {str(file.relative_to(keys.PACKAGE)) for file in files}
    assert {"tasks/addition.py", "rewards/number.py", "rewards/number_parser.py", "tasks/shared/base.py"} <= names
    assert not names & {"tasks/gsm8k.py", "tasks/__init__.py", "config/schema.py"}
    own, libraries = tmp_path / "mine.py", set[str]()
    own.write_text("import json\nimport numpy as np\nfrom grpo_train.rewards.number import grade_number\n")
    files.clear()
    keys._gather(own, files, libraries)
    assert libraries == {"numpy"}
    assert own in files
    assert keys.PACKAGE / "rewards" / "number.py" in files


@pytest.mark.parametrize(
    ("grader", "changed"),
    [
        ("mine.py:judge", ["mine.py", "helper.py", "lib/deep.py", "lib/__init__.py"]),
        ("mine.py:Judge", ["mine.py", "helper.py"]),
        ("pkg/mine.py:judge", ["pkg/mine.py", "pkg/near.py", "pkg/__init__.py"]),
        ("grader_module:judge", ["grader_module.py", "helper.py"]),
    ],
)
def test_files_beside_a_grader_are_part_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grader: str, changed: list[str]
) -> None:
    sources = {
        "mine.py": "import helper, json\nfrom lib import deep\nclass _J:\n    def __call__(self, a): return True\n"
        "Judge = _J()\ndef judge(attempt): return helper.right(attempt)\n",
        "helper.py": "def right(attempt): return True\n",
        "lib/__init__.py": "",
        "lib/deep.py": "from . import other\n",
        "lib/other.py": "",
        "pkg/__init__.py": "",
        "pkg/mine.py": "from .near import judge\n",
        "pkg/near.py": "def judge(attempt): return True\n",
        "grader_module.py": "from helper import right as judge\n",
        "unused.py": "",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    (tmp_path / "test.jsonl").write_text('{"prompt": "A?", "answer": 1}\n')
    config = Config(task=TaskConfig(name="data", path=str(tmp_path / "test.jsonl"), grader=grader))
    try:
        task = load_task(config.task)
        first = keys.grader_key(task, config)
        (tmp_path / "unused.py").write_text("# changed")
        assert keys.grader_key(task, config) == first
        for name in changed:
            (tmp_path / name).write_text(sources[name] + "# changed")
            assert keys.grader_key(task, config) != first, name
            (tmp_path / name).write_text(sources[name])
    finally:
        _import_file.cache_clear()
        grader_of.cache_clear()
        for name in [name for name, each in sys.modules.items() if str(tmp_path) in str(getattr(each, "__file__", ""))]:
            del sys.modules[name]


def test_every_sample_has_its_own_seed() -> None:
    seeds = {seed_of(base, label, index, sample) for base in (0, 1) for label in ("a", "b")
             for index in range(20) for sample in range(4)}  # fmt: skip
    assert len(seeds) == 320
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(3, "addition", 7, 1) == seed_of(3, "addition", 7, 1)
