"""A loss of the user's file: the example of the docs trains, and what is wrong is said before a run exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from grpo_train.config.loading import load_config
from grpo_train.rewards.types import TaskError
from grpo_train.train.own_loss import find_loss, try_loss
from grpo_train.train.preflight import check_start
from tests.support.engine import (
    MICRO,
    REPOSITORY,
    config_text,
    grpo_train,
    resume_here,
    run_of,
    train_here,
    write_micro,
)

PAGE = REPOSITORY / "docs" / "algorithms.md"
HEAD = "import torch\nfrom grpo_train.algorithm.losses import *\n\n"
ONE = "lambda ratio, advantage, logps, clip: Surrogate(-ratio * advantage, ratio < 0, ratio < 0)"


def documented() -> str:
    """The example of the page."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_loss_trains_and_resumes_anywhere(micro_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (micro_root / "mine").mkdir()
    (micro_root / "mine" / "my_loss.py").write_text(documented())
    monkeypatch.chdir(micro_root / "mine")
    text = config_text(MICRO, algorithm__loss_type="my_loss.py:soft_clip", run__total_steps=4)
    config = check_start(load_config(text), micro_root, None)
    assert config.algorithm.loss_type == f"{micro_root}/mine/my_loss.py:soft_clip"
    monkeypatch.chdir("/")
    (cfg := micro_root / "checked.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    run = train_here(micro_root, cfg, "own", "--until", "2")
    resume_here(run, total=4)
    assert [row["step"] for row in run.read_log("train_log.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def loss():\n    return 3\n", "returns int; it must return a LossSpec"),
        ("def loss():\n    raise KeyError('x')\n", "failed: KeyError: 'x'"),
        ("def other():\n    pass\n", "no function 'loss'"),
        (
            f"def loss():\n    return LossSpec(token_ratio, {ONE}, lambda mask, counts: 1 / mask.sum())\n",
            "of the whole step",
        ),
        (f"def loss():\n    return LossSpec(token_ratio, {ONE}, lambda mask, counts: mask / 0)\n", "is not finite"),
        (
            f"def loss():\n    return LossSpec(token_ratio, {ONE.replace('-ratio', '0 * ratio')}, per_completion)\n",
            "nothing would be learned",
        ),
        (f"def loss():\n    return LossSpec(lambda *_: 1 / 0, {ONE}, per_completion)\n", "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, body: str, message: str) -> None:
    (file := tmp_path / "own.py").write_text(HEAD + body)
    with pytest.raises(TaskError, match=re.escape(message)) as raised:
        try_loss(f"{file}:loss")
    assert str(raised.value).startswith("algorithm.loss_type: ")


def test_a_launch_tries_it(micro_root: Path) -> None:
    (micro_root / "own.py").write_text("def loss():\n    return 3\n")
    cfg = write_micro(micro_root, algorithm__loss_type=f"{micro_root}/own.py:loss")
    done = grpo_train("train", "--cfg", cfg, "--run-name", "own", root=micro_root)
    assert (done.returncode, "must return a LossSpec" in done.stderr) == (2, True)
    assert not run_of(micro_root, "own").path.exists()
    cfg = write_micro(micro_root, algorithm__loss_type="grpoo")
    done = grpo_train("train", "--cfg", cfg, "--run-name", "own", root=micro_root)
    assert (done.returncode, "did you mean grpo?, or file.py:function" in done.stderr) == (2, True)


def test_built_in_ones_keep_their_names() -> None:
    assert find_loss("sapo").bounds == "nothing"
