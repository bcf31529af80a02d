"""What docs/own-task.md shows: its configs load, its example of an error is the program's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpo_train.config import load_config
from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import TaskError, load_task

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-task.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL))
def test_configs_of_the_page_load(block: str) -> None:
    assert load_config(block).task.path


def test_error_of_the_page_is_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = ["A?,1", "B?,2", "C?,3", "D?,4", "E?,5", "F?,", "G?,7", "H?,"]
    Path("problems.csv").write_text("prompt,answer\n" + "\n".join(cells) + "\n")
    (shown,) = re.findall(r"```\n(problems\.csv, line.*?)\n```", PAGE)
    with pytest.raises(TaskError) as error:
        load_task(TaskConfig(name="data", path="problems.csv")).size("train")
    assert str(error.value).replace(f"{tmp_path}/", "") == shown
