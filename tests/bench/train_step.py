"""Time and memory of our training step relative to ``trl.GRPOTrainer``'s.

    python tests/bench/train_step.py [--quick]      # minutes

Both get the same weights, recorded completions and rewards, micro-batches of the same size, Dr. GRPO with unscaled
advantages, gradient clipping and torch's fused AdamW, in float32 on the CPU. TRL trains in its own loop, with
``rollout_func`` in place of generation and without gradient checkpointing. Wherever the two are compared, they must
first agree on the loss and on every parameter's gradient.

Time is processor seconds of the one computing thread, so that other users of the machine matter little. Ours covers
``train()`` from the advantages to the optimizer step, token sums included; TRL's runs from ``on_step_begin`` to
``on_step_end`` without ``_generate_and_score_completions`` (generation, rewards, advantages, padding). They alternate
in one process, one step each; ratios are taken between neighbors.

TRL spends more time because it pads every micro-batch to the longest completion of the step, computes a prompt once per
completion, computes completions without advantage like any other, and off CUDA also computes the logits of prompts and
padding.

Memory is the peak resident set size over two steps in a separate process; "net" is the part above the process with its
model loaded: gradients, optimizer state, activations, logits. "full" is ours with ``chunked_logprobs: false``. On CUDA,
TRL's fused head works in place, which these figures do not show.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import math
import multiprocessing
import os
import platform
import random
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.update(
    TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", CUDA_VISIBLE_DEVICES=""
)
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tests.support.train_step import Ours, Recording, Step, record, settings_of, tiny, trl_steps

HIDDEN, MEASURED = 64, 16
"""Hidden size and completions where memory is measured."""
TOLERANCE = 1e-4
"""Of a parameter's gradient, relative to its norm, in float32."""


# ------------------------------------------------------------------------------------------------------------- time


def whole_gradient(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad.clone() for p in parameters if p.grad is not None]


def take_turns(recording: Recording, steps: int, microbatch: int = 2) -> tuple[list[float], list[float], float]:
    """Seconds of our steps and TRL's, and the relative difference of the gradients of the first two."""
    model, tokenizer = tiny()
    config = settings_of(recording, microbatch)
    ours = Ours(copy.deepcopy(model), tokenizer, recording, config)
    our_seconds: list[float] = []
    trl_seconds: list[float] = []
    apart = math.nan

    def turn(trl: Step) -> None:
        nonlocal apart
        if trl.gradient:  # the first step is a warmup and must agree
            step = ours.step(whole_gradient)
            apart = compare(step, trl)
            return
        trl_seconds.append(trl.seconds)
        our_seconds.append(ours.step().seconds)

    trl_steps(model, tokenizer, recording, config, steps + 1, whole_gradient, between=turn)
    return our_seconds, trl_seconds, apart


def compare(ours: Step, trl: Step) -> float:
    """Largest difference of a parameter's gradients relative to their norm; fails if the steps disagree."""
    assert abs(ours.loss - trl.loss) <= 1e-6, f"the losses differ: {ours.loss:g} and TRL's {trl.loss:g}"
    pairs = zip(ours.gradient, trl.gradient, strict=True)
    apart = max(float((one - other).norm() / other.norm()) for one, other in pairs)
    assert apart <= TOLERANCE, f"the gradients differ by {apart:.1e} of their norm"
    return apart


def time_line(name: str, recording: Recording, steps: int, aim: str) -> str:
    ours, trl, apart = take_turns(recording, steps)
    low, middle, high = statistics.quantiles([one / other for one, other in zip(ours, trl, strict=True)], n=4)
    return (
        f"{name:<36} {statistics.median(ours):6.3f} {statistics.median(trl):6.3f}   "
        f"{middle:4.2f} ({low:.2f}-{high:.2f})  {1 / middle:5.2f}x {aim:<7}  {apart:.0e}"
    )


# ----------------------------------------------------------------------------------------------------------- memory


def resident(name: str) -> float:
    """VmRSS or VmHWM of this process in MB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024 / 1e6


def sample_of_gradient(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    """A sample of each parameter's gradient relative to its norm, and the norm: negligible memory."""
    samples = []
    for grad in (p.grad for p in parameters if p.grad is not None):
        norm = torch.linalg.vector_norm(grad)
        samples.append(torch.cat([grad.flatten()[:: max(1, grad.numel() // 50)] / norm, norm.view(1)]))
    return samples


def measure(side: str, vocabulary: int, completions: int) -> dict[str, Any]:
    """Two steps at this size in this process: memory, the second's seconds, the first's loss and gradient."""
    recording = record([128] * completions)
    model, tokenizer = tiny(vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=256, num_attention_heads=4)
    config = settings_of(recording, recording.groups, train__chunked_logprobs=side != "full")
    steps: list[Step] = []
    base = 0.0

    def start() -> None:
        nonlocal base
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        base = resident("VmRSS")

    if side == "TRL":
        trl_steps(model, tokenizer, recording, config, 2, sample_of_gradient, start, steps.append)
    else:
        ours = Ours(model, tokenizer, recording, config)
        start()
        steps += [ours.step(sample_of_gradient), ours.step()]
    return {
        "peak": (peak := resident("VmHWM")),
        "net": peak - base,
        "seconds": steps[1].seconds,
        "loss": steps[0].loss,
        "gradient": [part.tolist() for part in steps[0].gradient],
    }


def in_a_process(side: str, vocabulary: int, completions: int) -> dict[str, Any]:
    """:func:`measure` in a fork of this process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(measure, side, vocabulary, completions).result()


def memory_lines(vocabularies: Sequence[int], completions: int) -> Iterator[str]:
    """One line per vocabulary."""
    rows = {side: [in_a_process(side, size, completions) for size in vocabularies] for side in ("ours", "full")}
    importlib.import_module("trl.trainer.grpo_trainer")  # only now, so that it does not count for ours
    rows["TRL"] = [in_a_process("TRL", size, completions) for size in vocabularies]
    for vocabulary, ours, full, trl in zip(vocabularies, *rows.values(), strict=True):
        first = [Step(0.0, r["loss"], [torch.tensor(part) for part in r["gradient"]]) for r in (ours, full, trl)]
        compare(first[0], first[2])
        compare(first[1], first[2])
        cells = "   ".join(f"{r['peak']:5.0f} {r['net']:5.0f} {r['seconds']:5.2f}" for r in (ours, full, trl))
        ratios = "  ".join(f"{ours[key] / trl[key]:4.2f}" for key in ("peak", "net", "seconds"))
        yield f"{vocabulary:>10,} {vocabulary * HIDDEN * 4 / 1e6:4.0f}   {cells}   {ratios}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="Run fewer repetitions and two vocabularies")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))
    print(f"{versions}, Python {platform.python_version()}, CPU, float32, 1 thread", flush=True)

    # First, because forks inherit memory used before.
    vocabularies = (1_000, 32_000) if quick else (1_000, 8_000, 32_000, 152_064)
    print(f"\n{MEASURED} completions of 128 tokens in one micro-batch, hidden size {HIDDEN}: peak MB, net MB, s a step")
    sides = "   ".join(f"{side:^17}" for side in ("ours", "full", "TRL"))
    print(f"{'vocabulary':>10} head   {sides}   ours/TRL: peak (aim <= 0.5), net, s")
    for line in memory_lines(vocabularies, MEASURED):
        print(line, flush=True)

    draw = random.Random(1)
    tail = [draw.randint(20, 60) for _ in range(60)] + [400] * 4
    draw.shuffle(tail)
    spread = [min(400, round(draw.lognormvariate(math.log(64), 0.5))) for _ in range(64)]
    print("\nthe tiny model, 64 completions of 8 prompts in 4 micro-batches: s a step, medians")
    print(f"{'':<36} {'ours':>6} {'TRL':>6}   {'ours/TRL (quartiles)':<17} {'faster':>5} {'aim':<7}  gradients apart")
    for name, lengths, flat, steps, aim in (
        ("64 tokens each", [64] * 64, 0, 15, ">= 1x"),
        ("20 to 60, four of 400", tail, 0, 5, ">= 1.5x"),
        (f"log-normal, {min(spread)} to {max(spread)}, mean {sum(spread) / 64:.0f}", spread, 0, 9, ">= 1.5x"),
        ("64 each, half of the groups all equal", [64] * 64, 4, 11, ""),
    ):
        print(time_line(name, record(lengths, flat), 3 if quick else steps, aim), flush=True)


if __name__ == "__main__":
    main()
