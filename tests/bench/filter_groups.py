"""Held-out accuracy per generated token with and without ``rollout.filter_groups``, on the demo or a ladder task.

    python tests/bench/filter_groups.py [--steps 16] [--seeds 3]      # minutes
    python tests/bench/filter_groups.py --task base_conversion --steps 14 --plain-steps 112

Each seed trains twice from the same tiny model, on one thread: config/demo.yaml, or config/ladder/tiny.yaml with the
given task. Both runs are evaluated greedily on all held-out problems at eight of their steps. Tokens are those of all
completions drawn so far, discarded ones included; accuracy at a number of tokens is read off the line between the two
evaluations around it, at equal parts of the tokens of the run that drew fewer. Where most groups have no signal, a
filtered step draws several times the tokens: ``--plain-steps`` gives the unfiltered run as many.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import open_run
from tests.support.engine import REPOSITORY, time_grpo_train

EVALUATIONS = 8
"""Of each run, beside the start: accuracy on the demo rises within the first ten steps."""
PARTS = 4
Curve = list[tuple[int, float]]
"""(completion tokens drawn so far, accuracy) of each evaluated step, the start first."""


def train(root: Path, task: str, seed: int, steps: int, *, is_filtered: bool) -> Curve:
    """Train and evaluate one run."""
    name = f"{'filtered' if is_filtered else 'plain'}_{seed}"
    every = max(1, steps // EVALUATIONS)
    settings = [
        f"run.seed={seed}",
        f"run.total_steps={steps}",
        f"run.save_every={every}",
        f"rollout.filter_groups={str(is_filtered).lower()}",
        *([f"task.name={task}"] if task else []),
    ]
    config = REPOSITORY / ("config/ladder/tiny.yaml" if task else "config/demo.yaml")
    options = [word for setting in settings for word in ("--set", setting)]
    time_grpo_train("train", "--cfg", config, "--root", root, "--run-name", name, *options)
    evaluated = ",".join(map(str, range(0, steps + 1, every)))
    time_grpo_train("eval", "--training-run", name, "--steps", evaluated, "--root", root)
    tokens = [0] * (steps + 1)
    for row in open_run(root, name).read_log("rollouts.jsonl"):
        tokens[row["step"]] += row["length"]
    table = csv.DictReader((root / f"eval_runs/{name}_{task or 'addition'}/consolidated_metrics.csv").open())
    return sorted((sum(tokens[: int(row["step"]) + 1]), float(row["accuracy"])) for row in table)


def accuracy_at(curve: Curve, tokens: float) -> float:
    """Accuracy after ``tokens``, on the line between the evaluations around it."""
    for (before, low), (after, high) in pairwise(curve):
        if before <= tokens <= after:
            return low + (high - low) * (tokens - before) / (after - before)
    raise ValueError(f"no evaluation after {tokens} tokens")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="", help="generated task of the ladder; the demo without it")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--plain-steps", type=int, help="steps of the unfiltered run; --steps without it")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    lengths = ((False, options.plain_steps or options.steps), (True, options.steps))
    table: list[list[tuple[float, float, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        time_grpo_train("tiny-model", "--task", options.task or "addition", "--out", root / "models/tiny")
        for seed in range(options.seeds):
            plain, filtered = (train(root, options.task, seed, steps, is_filtered=which) for which, steps in lengths)
            print(f"seed {seed} (tokens, accuracy) plain    {plain}\n{'':7}{'':18} filtered {filtered}", flush=True)
            least = min(plain[-1][0], filtered[-1][0])
            points = [least * part / PARTS for part in range(1, PARTS + 1)]
            table.append([(at, accuracy_at(plain, at), accuracy_at(filtered, at)) for at in points])
    print("\naccuracy by completion tokens drawn: seed, tokens, plain, filtered, difference")
    for seed, points_of in enumerate(table):
        for at, without, with_filter in points_of:
            print(f"{seed}  {at:9,.0f}  {without:.3f}  {with_filter:.3f}  {with_filter - without:+.3f}")
    for part in range(PARTS):
        differences = [points_of[part][2] - points_of[part][1] for points_of in table]
        print(f"mean difference at {part + 1}/{PARTS}: {statistics.mean(differences):+.3f}")


if __name__ == "__main__":
    main()
