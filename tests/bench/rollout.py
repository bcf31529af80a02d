"""Speed of native rollouts beside the ``transformers`` backend and ``generate``, which TRL uses without vLLM.

    python tests/bench/rollout.py [--quick]      # minutes

Groups of 8 completions of a prompt of 100 to 300 tokens, sampled at temperature 1 in one batch with the model of
tests/bench/eval.py, whose answers have the length given in their prompts: 64 tokens each, or 4 to 256 with a long tail;
without adapter, and with LoRA of rank 16 on every linear layer. ``generate`` is called as in trl.GRPOTrainer, with a
dynamic and a static cache, of which the faster one counts. Ours also record the log-probability of every token. All
must generate the same lengths. They take turns in one process; times are processor seconds of the one computing thread,
and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from grpo_train.rollout import RolloutBackend
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.bench.eval import BUDGET, FIRST, WORDS, make_model

GENERATIONS = 8
AIMS = {("equal", False): 1.2, ("equal", True): 1.8, ("ragged", False): 1.0, ("ragged", True): 1.0}
"""Of native relative to transformers, by lengths and adapter."""


def make_prompts(kind: str, count: int) -> tuple[list[list[int]], list[int]]:
    """Token ids of prompts and the length of their completions, which the last token encodes."""
    rng = random.Random(kind)
    lengths = [64] * count if kind == "equal" else [min(BUDGET, 4 + int(rng.expovariate(1 / 60))) for _ in range(count)]
    texts = [[FIRST + rng.randrange(300, WORDS) for _ in range(rng.randrange(100, 300))] for _ in range(count)]
    return [[*text, FIRST + length] for text, length in zip(texts, lengths, strict=True)], lengths


def ours(backend: RolloutBackend, prompts: list[list[int]]) -> list[int]:
    """Lengths of the completions, after a sync, as in training."""
    backend.sync()
    found = backend.generate(prompts, seeds=range(len(prompts)), max_completion_length=BUDGET, temperature=1.0)
    assert all(len(one.logps) == len(one.ids) for one in found)
    return [len(one.ids) for one in found]


def theirs(model: Any, tokenizer: Any, cache: str, prompts: list[list[int]]) -> list[int]:
    """Lengths of the completions of ``generate``."""
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(
            **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=BUDGET,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
            **({"cache_implementation": cache} if cache != "dynamic" else {}),
        )  # fmt: skip
    completions = ids[:, batch["input_ids"].shape[1] :]
    return [row.index(FIRST) + 1 if FIRST in row else len(row) for row in completions.tolist()]


def adapted(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="Run one round")
    rounds, count = 1 if parser.parse_args().quick else 5, 8
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    print(f"{count} prompts x {GENERATIONS} completions, {rounds} rounds, one thread; tokens per processor second")
    for lora in (False, True):
        model, tokenizer = make_model()
        model = adapted(model) if lora else model
        sides: dict[str, Callable[[list[list[int]]], list[int]]] = {
            "native": partial(ours, NativeBackend(model, tokenizer)),
            "transformers": partial(ours, TransformersBackend(model, tokenizer)),
            "generate, dynamic": partial(theirs, model, tokenizer, "dynamic"),
            "generate, static": partial(theirs, model, tokenizer, "static"),
        }
        for kind in ("equal", "ragged"):
            unique, lengths = make_prompts(kind, count)
            prompts = [prompt for prompt in unique for _ in range(GENERATIONS)]
            expected = [length for length in lengths for _ in range(GENERATIONS)]
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(rounds):
                for name, generate in sides.items():
                    start = time.process_time()
                    found = generate(prompts)
                    seconds[name].append(time.process_time() - start)
                    assert found == expected, f"{name}: {found} instead of {expected}"
            print(f"{kind}, {'LoRA' if lora else 'no adapter'}")
            for name, each in seconds.items():
                print(f"  {name:<18} {sum(expected) / statistics.median(each):8.1f}")
            peers = ["generate, dynamic", "generate, static"]
            faster = min(peers, key=lambda name: statistics.median(seconds[name]))
            for peer, aim in (("transformers", f"  aim {AIMS[kind, lora]}"), (faster, "")):
                ratios = sorted(b / a for a, b in zip(seconds["native"], seconds[peer], strict=True))
                ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                print(f"  native / {peer}: {ratio}{aim}", flush=True)


if __name__ == "__main__":
    main()
