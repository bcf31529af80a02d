"""vLLM on an export: its chat API gives the greedy answers of our evaluation.

vLLM is in an environment of its own (``make setup-vllm``): it needs other versions of torch and transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from grpo_train.config.schema import Rollout
from grpo_train.export.plan import ExportRequest, plan_export
from grpo_train.export.write import write_export
from grpo_train.rollout.vllm.server import python_of
from tests.support.engine import train_here, write_config
from tests.support.evaluating import evaluate_here

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


def test_vllm_answers_as_evaluated(make_root: Callable[[], Path], tmp_path: Path) -> None:
    python = python_of(Rollout())
    root = make_root()
    config = write_config(root, run__total_steps=4, model__adapter="lora", optimizer__learning_rate=3e-3)
    run = train_here(root, config, "trained")
    assert evaluate_here(root, "trained", steps="4", num_problems=PROBLEMS, subset_frac=1.0) == 0
    (file,) = root.glob("eval_runs/trained_addition/step_4_addition/completions.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    write_export(plan_export(ExportRequest("trained", merge=True, to=tmp_path / "export", root=run.root)))
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
