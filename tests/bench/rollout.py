"""Speed of our rollouts relative to transformers' ``generate``, which TRL uses without vLLM.

    python tests/bench/rollout.py [--quick]      # minutes

Groups of 8 completions of a prompt of 100 to 300 tokens, sampled at temperature 1 in one batch with the model of
tests/bench/eval.py, whose answers have the length given in their prompts: 64 tokens each, or 4 to 256 with a long tail.
Ours also records the log-probability of every token. Both sides must generate the same lengths. They alternate in one
process; times are processor seconds of the one computing thread, and ratios are taken between neighbors.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.bench.eval import BUDGET, FIRST, WORDS, make_model

GENERATIONS = 8


def make_prompts(kind: str, count: int) -> tuple[list[list[int]], list[int]]:
    """Token ids of prompts and the length of their completions, which the last token encodes."""
    rng = random.Random(kind)
    lengths = [64] * count if kind == "equal" else [min(BUDGET, 4 + int(rng.expovariate(1 / 60))) for _ in range(count)]
    texts = [[FIRST + rng.randrange(300, WORDS) for _ in range(rng.randrange(100, 300))] for _ in range(count)]
    return [[*text, FIRST + length] for text, length in zip(texts, lengths, strict=True)], lengths


def ours(model: Any, tokenizer: Any, prompts: list[list[int]]) -> list[int]:
    """Lengths of the completions of the trainer's backend."""
    repeated = [prompt for prompt in prompts for _ in range(GENERATIONS)]
    found = TransformersBackend(model, tokenizer).generate(
        repeated, seeds=range(len(repeated)), max_completion_length=BUDGET, temperature=1.0
    )
    assert all(len(one.logps) == len(one.ids) for one in found)
    return [len(one.ids) for one in found]


def theirs(model: Any, tokenizer: Any, prompts: list[list[int]]) -> list[int]:
    """Lengths of the completions of ``generate``, called as in trl.GRPOTrainer."""
    repeated = [prompt for prompt in prompts for _ in range(GENERATIONS)]
    batch = tokenizer.pad({"input_ids": repeated}, padding_side="left", return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(
            **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=BUDGET,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
    completions = ids[:, batch["input_ids"].shape[1] :]
    return [row.index(FIRST) + 1 if FIRST in row else len(row) for row in completions.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="Run one round")
    rounds, count = 1 if parser.parse_args().quick else 3, 8
    torch.set_num_threads(1)
    model, tokenizer = make_model()
    sides: dict[str, Callable[..., list[int]]] = {"ours": ours, "generate": theirs}
    print(f"{count} prompts x {GENERATIONS} completions, {rounds} rounds, one thread; tokens per processor second")
    for kind in ("equal", "ragged"):
        prompts, lengths = make_prompts(kind, count)
        expected = [length for length in lengths for _ in range(GENERATIONS)]
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, generate in sides.items():
                start = time.process_time()
                found = generate(model, tokenizer, prompts)
                seconds[name].append(time.process_time() - start)
                assert found == expected, f"{name}: {found} instead of {expected}"
        rates = "  ".join(f"{name} {sum(expected) / statistics.median(each):7.1f}" for name, each in seconds.items())
        ratios = sorted(b / a for a, b in zip(seconds["ours"], seconds["generate"], strict=True))
        print(f"{kind:>7}: {rates}  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
