"""Held-out accuracy per generated token with and without a choice of prompts, on the demo or ladder tasks.

    python tests/bench/filter_groups.py [--steps 16] [--seeds 3]      # minutes
    python tests/bench/filter_groups.py --task base_conversion --steps 14 --plain-steps 112
    python tests/bench/filter_groups.py --key task.pass_rate --task demo --task word_problem

``--key`` is ``rollout.filter_groups`` or ``task.pass_rate``; the latter leaves out what the starting model solves in
less than a tenth or more than nine tenths of eight samples. That measurement, of ``--measured`` training problems, is
made once for a task; its tokens are printed, and not counted in the curves, since every later run can use it.

Each seed trains twice from the same tiny model, on one thread: config/demo.yaml, or config/ladder/tiny.yaml with the
given task. Both runs are evaluated greedily on all held-out problems at eight of their steps. Tokens are those of all
completions drawn so far, discarded ones included; accuracy at a number of tokens is read off the line between the two
evaluations around it, at equal parts of the tokens of the run that drew fewer. Where most groups have no signal, a
filtered step draws several times the tokens: ``--plain-steps`` gives the unfiltered run as many.
"""

from __future__ import annotations

import argparse
import csv
import json
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
FILTER_GROUPS, PASS_RATE = "rollout.filter_groups", "task.pass_rate"
SETTINGS = {FILTER_GROUPS: "true", PASS_RATE: "[0.1, 0.9]"}
DEMO = "demo"
GENERATED = {DEMO: "addition"}
"""Task of a config that has another name."""
Curve = list[tuple[int, float]]
"""(completion tokens drawn so far, accuracy) of each evaluated step, the start first."""


def config_of(task: str) -> list[str]:
    """Options that name the config."""
    if task == DEMO:
        return ["--cfg", str(REPOSITORY / "config/demo.yaml")]
    return ["--cfg", str(REPOSITORY / "config/ladder/tiny.yaml"), "--set", f"task.name={task}"]


def measure(root: Path, task: str, problems: int) -> int:
    """Measure the pass rates of training problems; returns the completion tokens that it took."""
    sampling = ["--split", "train", "--num-samples", "8", "--temperature", "1", "--num-problems", problems]
    time_grpo_train("eval", "--model", "tiny", *config_of(task), *sampling, "--root", root)
    (file,) = root.glob("eval_runs/@*/*/completions.jsonl")
    return sum(json.loads(line)["length"] for line in file.read_text().splitlines())


def train(root: Path, task: str, seed: int, steps: int, setting: str = "") -> Curve:
    """Train and evaluate one run."""
    name = f"{'chosen' if setting else 'plain'}_{seed}"
    every = max(1, steps // EVALUATIONS)
    settings = [
        f"run.seed={seed}",
        f"run.total_steps={steps}",
        f"run.save_every={every}",
        *([setting] if setting else []),
    ]
    options = [*config_of(task), *(word for each in settings for word in ("--set", each))]
    time_grpo_train("train", "--root", root, "--run-name", name, *options)
    evaluated = ",".join(map(str, range(0, steps + 1, every)))
    time_grpo_train("eval", "--training-run", name, "--steps", evaluated, "--root", root)
    tokens = [0] * (steps + 1)
    for row in open_run(root, name).read_log("rollouts.jsonl"):
        tokens[row["step"]] += row["length"]
    table = csv.DictReader((root / f"eval_runs/{name}_{GENERATED.get(task, task)}/consolidated_metrics.csv").open())
    return sorted((sum(tokens[: int(row["step"]) + 1]), float(row["accuracy"])) for row in table)


def accuracy_at(curve: Curve, tokens: float) -> float:
    """Accuracy after ``tokens``, on the line between the evaluations around it."""
    for (before, low), (after, high) in pairwise(curve):
        if before <= tokens <= after:
            return low + (high - low) * (tokens - before) / (after - before)
    raise ValueError(f"no evaluation after {tokens} tokens")


def compare(root: Path, task: str, key: str, steps: int, plain_steps: int, seeds: int, measured: int) -> None:
    """Train the runs of a task and print their table."""
    print(f"\n{task}, {key}={SETTINGS[key]}")
    time_grpo_train("tiny-model", "--task", GENERATED.get(task, task), "--out", root / "models/tiny")
    if key == PASS_RATE:
        tokens = measure(root, task, measured)
        print(f"pass rates of {measured:,} training problems: {tokens:,} tokens", flush=True)
    table: list[list[tuple[float, float, float]]] = []
    for seed in range(seeds):
        plain = train(root, task, seed, plain_steps)
        chosen = train(root, task, seed, steps, f"{key}={SETTINGS[key]}")
        print(f"seed {seed} (tokens, accuracy) plain  {plain}\n{'':7}{'':18} chosen {chosen}", flush=True)
        least = min(plain[-1][0], chosen[-1][0])
        points = [least * part / PARTS for part in range(1, PARTS + 1)]
        table.append([(at, accuracy_at(plain, at), accuracy_at(chosen, at)) for at in points])
    print("\naccuracy by completion tokens drawn: seed, tokens, plain, chosen, difference")
    for seed, points_of in enumerate(table):
        for at, without, with_choice in points_of:
            print(f"{seed}  {at:9,.0f}  {without:.3f}  {with_choice:.3f}  {with_choice - without:+.3f}")
    for part in range(PARTS):
        differences = [points_of[part][2] - points_of[part][1] for points_of in table]
        print(f"mean difference at {part + 1}/{PARTS}: {statistics.mean(differences):+.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--key", choices=SETTINGS, default=FILTER_GROUPS, help="how prompts are chosen")
    parser.add_argument("--task", action="append", help="demo (the default), or a task of the ladder; repeatable")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--plain-steps", type=int, help="steps of the run without the choice; --steps without it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--measured", type=int, default=1200, help="training problems measured for task.pass_rate")
    options = parser.parse_args()
    plain_steps = options.plain_steps or options.steps
    for task in options.task or [DEMO]:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), task, options.key, options.steps, plain_steps, options.seeds, options.measured)


if __name__ == "__main__":
    main()
