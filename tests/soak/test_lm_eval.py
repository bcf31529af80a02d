"""lm-eval-harness on an export: the same answers and the same accuracy as our evaluation.

lm-eval comes from PyPI, into an environment of its own that sees the packages of this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from grpo_train.export.plan import ExportRequest, plan_export
from grpo_train.export.write import write_export
from tests.support.engine import environment, train_here, write_config
from tests.support.evaluating import evaluate_here

PROBLEMS = 200
VERSION = "0.4.13"
TASK = {
    "task": "own_addition",
    "dataset_path": "json",
    "output_type": "generate_until",
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{gold}}",
    "generation_kwargs": {"until": ["</answer>"], "do_sample": False, "max_gen_toks": 40},
    "filter_list": [
        {
            "name": "tag",
            "filter": [
                {"function": "regex", "regex_pattern": r"<answer>\s*(-?[0-9]+)\s*$"},
                {"function": "take_first"},
            ],
        }
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


MISSING = """
from importlib.metadata import PackageNotFoundError, requires, version
from packaging.requirements import Requirement
for text in requires("lm-eval"):
    needed = Requirement(text)
    if needed.marker and not needed.marker.evaluate({"extra": ""}):
        continue
    try:
        version(needed.name)
    except PackageNotFoundError:
        print(f"{needed.name}{needed.specifier}")
"""
"""Prints what lm-eval needs and this environment lacks: pip by itself would replace torch, by gigabytes."""


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command ``lm_eval``."""
    folder = tmp_path_factory.mktemp("lm_eval")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "development.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", f"lm-eval=={VERSION}"], check=True, timeout=600)
    missing = subprocess.run([python, "-c", MISSING], check=True, capture_output=True, text=True, timeout=60)
    subprocess.run([*install, *missing.stdout.split()], check=True, timeout=1200)
    assert not (packages / "torch").exists()
    return folder / "bin" / "lm_eval"


def test_lm_eval_agrees(lm_eval: Path, make_root: Callable[[], Path], tmp_path: Path) -> None:
    root = make_root()
    config = write_config(root, run__total_steps=4, model__adapter="lora", optimizer__learning_rate=3e-3)
    run = train_here(root, config, "trained")
    assert evaluate_here(root, "trained", steps="4", num_problems=PROBLEMS, subset_frac=1.0) == 0
    (folder,) = root.glob("eval_runs/trained_addition/step_4_addition")
    ours = [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    write_export(plan_export(ExportRequest("trained", merge=True, to=tmp_path / "export", root=run.root)))

    tasks = tmp_path / "tasks"
    tasks.mkdir()
    rows = "".join(json.dumps({"question": row["question"], "gold": row["gold"]}) + "\n" for row in ours)
    (tasks / "test.jsonl").write_text(rows)
    task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(tasks / "test.jsonl")}}}
    (tasks / "own_addition.yaml").write_text(yaml.safe_dump(task))
    words = [
        lm_eval, "--model", "hf", "--model_args", f"pretrained={tmp_path / 'export'},dtype=float32", "--device", "cpu",
        "--tasks", "own_addition", "--include_path", str(tasks), "--apply_chat_template", "--batch_size", "1",
        "--output_path", str(tmp_path / "results"), "--log_samples",
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=environment(**offline), capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    (samples,) = tmp_path.glob("results/**/samples_own_addition_*.jsonl")
    theirs = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    assert [row["resps"][0][0] for row in theirs] == [row["completion"].removesuffix("</answer>") for row in ours]
    (results,) = tmp_path.glob("results/**/results_*.json")
    scores = json.loads(results.read_text())["results"]["own_addition"]
    found, expected = scores["exact_match,tag"], metrics["flexible_accuracy"]
    print(f"\nlm-eval {found:.4f}, ours {metrics['accuracy']:.4f}, flexible {expected:.4f} of {metrics['n']}")
    assert found == pytest.approx(expected)
