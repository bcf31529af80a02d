"""All of GSM8K's test file through ``grpo-train eval`` with the tiny model."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.run_dir.files import read_json, read_jsonl
from tests.support import micro
from tests.support.data import data_file, is_official
from tests.support.engine import grpo_train, train_here, write_config

make_root, tiny_model = micro.make_root, micro.tiny_model


@pytest.mark.official_data
@pytest.mark.timeout(600)
def test_every_row_is_graded(make_root: Callable[[], Path]) -> None:
    root = make_root()
    run = train_here(root, write_config(root, run__total_steps=1), "trained")
    data = data_file("gsm8k_test.jsonl")
    questions = len(data.read_text().splitlines())
    assert questions == (1319 if is_official("gsm8k_test.jsonl") else questions) > 0
    done = grpo_train(
        "eval", "--training-run", run.name, "--eval-dataset", "gsm8k_r1_template", "--eval-path", data,
        "--max-completion-length", "8", "--batch-size", "128", "--subset-frac", "1", root=root, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    folder = root / "eval_runs" / "trained_gsm8k_r1_template"
    (row,) = csv.DictReader((folder / "consolidated_metrics.csv").open(newline=""))
    assert (row["name"], row["status"], int(row["n"])) == ("step_1", "ok", questions)
    assert 0 <= float(row["ci_low"]) <= float(row["accuracy"]) <= float(row["ci_high"]) <= 1
    step = folder / "step_1_gsm8k_r1_template"
    completions = [row for _, row in read_jsonl(step / "completions.jsonl")]
    assert [row["index"] for row in completions] == list(range(questions))
    assert all(row["length"] <= 8 for row in completions)
    print(f"{questions} rows in {(read_json(step / 'timing.json') or {})['seconds']} s")
