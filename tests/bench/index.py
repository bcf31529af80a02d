"""Indexes of logs: ``python tests/bench/index.py [FOLDER]``. Each figure as a ratio taken in the same call.

Makes a run of 100,000 steps (198 MB), 20 runs of 50,000 steps and rollouts of 1 GB in FOLDER (kept) or a temporary one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from remote import gate
from tests.support.agent import RawAgent

METRICS = [
    "loss", "reward", "reward_std", "rewards/accuracy/mean", "rewards/accuracy/std", "frac_reward_zero_std",
    "groups/all_correct", "groups/all_wrong", "completions/mean_length", "completions/min_length",
    "completions/max_length", "completions/clipped_ratio", "entropy", "kl", "grad_norm", "learning_rate", "ess/token",
    "ess/sequence", "gns/b_simple", "gns/signal", "clip_ratio/high_mean", "clip_ratio/low_mean",
    "clip_ratio/region_mean", "mismatch/kl", "mismatch/ratio_max", "mismatch/ratio_mean", "mismatch/outside_0.9_1.1",
    "accuracy", "accuracy/flexible", "format", "hacking/multiple_answers", "sandbox/timeouts", "epoch",
    "memory/peak_gib", "time/rollout", "time/reward", "time/score", "time/train", "time/save", "time/step", "x/1",
    "x/2", "x/3", "x/4", "x/5", "x/6", "x/7", "x/8",
]  # fmt: skip
SHOWN = ["reward", "grad_norm", "ess/token", "kl", "accuracy", "completions/mean_length"]


def write_run(root: Path, name: str, steps: int, metrics: list[str]) -> Path:
    """A run with a log."""
    log = root / "training_runs" / name / "logs" / "train_log.jsonl"
    if not log.exists():
        log.parent.mkdir(parents=True)
        (log.parent.parent / "launch.json").write_text("{}")
        chance = random.Random(name)
        with log.open("w") as file:
            for step in range(1, steps + 1):
                time_ = f"2026-11-22T{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}.000Z"
                file.write(f'{{"step": {step}, "time": "{time_}", "num_tokens": {step * 6100}, ')
                file.write(json.dumps({metric: chance.random() * 10 for metric in metrics})[1:-1] + ', "health": []}\n')
    return log


def write_rollouts(root: Path, name: str, steps: int) -> Path:
    """Rollouts of 64 prompts with 8 completions a step, about 2 kB each."""
    log = root / "training_runs" / name / "logs" / "rollouts.jsonl"
    if not log.exists():
        chance = random.Random(name)
        text = "So the answer needs a few steps of arithmetic. \\n" * 30
        with log.open("w") as file:
            for step in range(1, steps + 1):
                for sample in range(512):
                    reward = chance.choice([0.0, 1.0, 2.0])
                    right = str(reward > 1).lower()
                    file.write(
                        f'{{"step": {step}, "time": "2026-11-22T08:00:00.000Z", "group": {sample // 8}, "sample": '
                        f'{sample % 8}, "index": {sample}, "reward": {reward}, "advantage": {reward - 1}, "rewards": '
                        f'{{"accuracy": {reward}}}, "correct": {right}, "formatted": true, "flexible": {right}, '
                        f'"reason": "right", "answer": "72", "gold": "72", "length": {chance.randrange(512)}, '
                        f'"truncated": false, "prompt": "Natalia sold clips to {sample // 8} friends in April", '
                        f'"completion": "{text}"}}\n'
                    )
    return log


class Bench:
    """An agent that is asked, and what it cost."""

    def __init__(self, root: Path) -> None:
        self.agent = RawAgent(root, process=True)
        self.bytes = 0

    def ask(self, op: str, run: str, **params: Any) -> tuple[dict[str, Any], float]:
        """A reply, and the seconds until it was there."""
        self.agent.frames.clear()
        began = time.perf_counter()
        frame = self.agent.request(op, run=run, **params)
        taken = time.perf_counter() - began
        self.bytes = len(json.dumps(frame))
        return gate.reply(op, frame), taken

    def whole(self, op: str, run: str, **params: Any) -> tuple[float, float]:
        """Seconds until the first reply and until the true one."""
        began = time.perf_counter()
        reply, first = self.ask(op, run, **params)
        while reply["state"] != "whole":
            time.sleep(0.5)
            reply, _ = self.ask(op, run, **params)
        return first, time.perf_counter() - began

    def ping(self, count: int) -> float:
        """95th percentile of the seconds until a pong."""
        times = []
        for number in range(count):
            began = time.perf_counter()
            self.agent.send({"type": "ping", "n": number})
            while not any(frame["type"] == "pong" and frame["n"] == number for frame in self.agent.frames):
                self.agent.frames += self.agent._decoder.feed(self.agent.transport.receive(1) or b"")
            times.append(time.perf_counter() - began)
            self.agent.frames.clear()
            time.sleep(0.02)
        return statistics.quantiles(times, n=20)[-1]

    def pids(self) -> tuple[int, int]:
        """The agent and its process of indexes."""
        agent = psutil.Process(self.agent.hello["host"]["pid"])
        (child,) = [child.pid for child in agent.children() if "index" in child.cmdline()]
        return agent.pid, child

    def close(self) -> None:
        self.agent.transport.close()


def cpu(pid: int) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> int:
    """Peak memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def loads(log: Path) -> tuple[float, float]:
    """Seconds, and of processor time, that ``json.loads`` takes for all lines."""
    code = f"import json\nfor line in open({str(log)!r}, 'rb'): json.loads(line)"
    return timed([sys.executable, "-c", code])


def timed(command: list[str]) -> tuple[float, float]:
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after, taken = os.times(), time.perf_counter() - began
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return taken, used


def row(name: str, seen: str, aim: str = "") -> None:
    print(f"{name:<58} {seen:>26}   {aim}", flush=True)


def train_log(root: Path) -> None:
    log = write_run(root, "long", 100_000, METRICS)
    shutil.rmtree(root / ".grpo", ignore_errors=True)
    wall, used = loads(log)
    row(f"json.loads over {log.stat().st_size / 1e6:.0f} MB", f"{wall:.2f} s, CPU {used:.2f} s")
    bench = Bench(root)
    bench.ask("metrics", "short")
    agent, child = bench.pids()
    before = cpu(child)
    params = {"metrics": SHOWN, "width": 120}
    first, whole = bench.whole("series", "long", **params)
    row("first reply, never indexed", f"{first:.2f} s", "0.5 s")
    row("whole, never indexed / json.loads", f"{whole / wall:.2f}", "2.5")
    row("  CPU of the index / CPU of json.loads", f"{(cpu(child) - before) / used:.2f}", "2.5")
    row("again", f"{min(bench.ask('series', 'long', **params)[1] for _ in range(3)):.3f} s", "0.3 s")
    row("  bytes of the reply, 6 metrics, width 120", f"{bench.bytes / 1e3:.0f} kB", "1 MB")
    with log.open("r+b") as file:
        size = log.stat().st_size
        file.seek(0, os.SEEK_END)
        file.write(b'{"step": 100001, "reward": 1}\n')
    row("again, after a new row", f"{bench.ask('series', 'long', **params)[1]:.3f} s", "0.3 s")
    os.truncate(log, size)
    row("all metrics", f"{bench.ask('metrics', 'long')[1]:.3f} s", "0.3 s")
    row("peak memory of agent, of the index's process", f"{peak(agent)}, {peak(child)} MiB", "60, 150 MiB")
    bench.close()
    bench = Bench(root)
    bench.agent.request("list_runs")
    row("first reply of another agent, indexed", f"{bench.ask('series', 'long', **params)[1]:.3f} s", "0.3 s")
    bench.close()


def comparison(root: Path) -> None:
    names = [f"compared{number}" for number in range(20)]
    for name in names:
        write_run(root, name, 50_000, METRICS[:12])
    bench = Bench(root)
    idle = bench.ping(60)
    for name in names:
        bench.ask("metrics", name)
    busy = bench.ping(60)
    assert bench.ask("metrics", names[0])[0]["state"] == "coarse", "made before the pings were over"
    row("ping p95, while indexes are made / idle", f"{busy / idle:.2f}", f"2   ({idle * 1e3:.1f} ms idle)")
    for name in names:
        bench.whole("series", name, metrics=["reward"])
    for metrics in (["reward"], SHOWN[:2]):
        began = time.perf_counter()
        for name in names:
            bench.ask("series", name, metrics=metrics, width=120)
        taken = time.perf_counter() - began
        row(f"20 runs of 50,000 steps, indexed, {len(metrics)} metric(s)", f"{taken:.2f} s", "1 s")
    row("peak memory of agent, of the index's process", "{}, {} MiB".format(*map(peak, bench.pids())), "60, 150 MiB")
    bench.close()


def rollouts(root: Path) -> None:
    log = write_rollouts(root, "long", 500)
    shutil.rmtree(root / ".grpo", ignore_errors=True)
    subprocess.run(["wc", "-l", str(log)], check=True, stdout=subprocess.DEVNULL)  # into the page cache
    wall, used = timed(["wc", "-l", str(log)])
    row(f"wc -l over {log.stat().st_size / 1e6:.0f} MB of rollouts", f"{wall:.2f} s, CPU {used:.2f} s")
    bench = Bench(root)
    bench.ask("metrics", "short")
    _, child = bench.pids()
    before = cpu(child)
    row("a step, never indexed", f"{bench.ask('rollout_step', 'long', step=250)[1]:.3f} s", "0.3 s")
    _, whole = bench.whole("rollout_steps", "long")
    row("whole, never indexed / wc -l", f"{whole / wall:.1f}", "20")
    row("  CPU of the index / CPU of wc -l", f"{(cpu(child) - before) / used:.1f}", "20")
    row("all steps, indexed", f"{bench.ask('rollout_steps', 'long')[1]:.3f} s", "0.3 s")
    reply, taken = bench.ask("rollout_step", "long", step=123)
    row("a step's 512 samples, indexed", f"{taken:.3f} s, {bench.bytes / 1e3:.0f} kB", "0.3 s")
    offsets = [sample["offset"] for sample in reply["samples"][:8]]
    row("8 samples with their texts", f"{bench.ask('samples', 'long', offsets=offsets)[1]:.3f} s", "0.3 s")
    for where in (["and", ["reward", "<", 1], ["truncated", "=", True]], ["text", "~", "no such word"]):
        pages, before_, began = 0, None, time.perf_counter()
        while pages == 0 or before_ is not None:
            page, _ = bench.ask("search_rollouts", "long", where=where, before=before_)
            pages, before_ = pages + 1, page["next"]
        taken = time.perf_counter() - began
        row(f"search of the whole file: {where[-1]}", f"{taken:.2f} s in {pages} pages", "streams")
    row("peak memory of agent, of the index's process", "{}, {} MiB".format(*map(peak, bench.pids())), "60, 150 MiB")
    bench.close()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    print(f"load {os.getloadavg()[0]:.1f}")
    try:
        write_run(folder, "short", 10, METRICS)
        train_log(folder)
        comparison(folder)
        rollouts(folder)
    finally:
        if len(sys.argv) == 1:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
