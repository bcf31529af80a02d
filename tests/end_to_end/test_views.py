"""The way from a run to a curve, a step, a sample and another run, by keys, over a real sshd."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.run_dir.files import to_json, utc_from
from tests.support.patience import eventually
from tests.support.ssh_box import SshBox, accept_host_key, ssh_box
from tests.support.terminal import Terminal

SPIKE = 140
STARTED = time.time() - 7200
"""A run that crashed more than a day ago no longer needs a look."""
SIZES = [(120, 40), (80, 24)]


def write_run(root: Path, name: str, rate: str) -> None:
    """A run of 200 steps with one spike, eight samples a step, and a console that ends in an error."""
    folder = root / "training_runs" / name
    logs = folder / "logs"
    logs.mkdir(parents=True)
    (folder / "launch.json").write_text(to_json({"time": utc_from(STARTED), "run": name, "argv": ["x"]}))
    status = {"state": "crashed", "step": 200, "total_steps": 400, "updated_at": utc_from(STARTED + 3600)}
    (folder / "status.json").write_text(to_json(status))
    (folder / "config.yaml").write_text(f"model: {{backbone: tiny}}\noptimizer: {{learning_rate: {rate}}}\n")
    chance = random.Random(name)
    with (logs / "train_log.jsonl").open("w") as train_log, (logs / "rollouts.jsonl").open("w") as rollouts:
        for step in range(1, 201):
            logged_at = utc_from(STARTED + step)
            norm = 9.75 if step == SPIKE else 0.3 + 0.1 * chance.random()
            row = {"step": step, "time": logged_at, "reward": 1 + step / 400, "num_tokens": step * 100}
            train_log.write(to_json({**row, "grad_norm": norm}) + "\n")
            for sample in range(8):
                right = sample % 2 == 0
                row = {
                    "step": step, "time": logged_at, "group": sample // 4, "sample": sample % 4, "index": sample,
                    "reward": 2.0 if right else 0.0, "advantage": 1.0 if right else -1.0, "length": 5,
                    "rewards": {"accuracy": 2.0 if right else 0.0}, "correct": right, "formatted": True,
                    "flexible": right, "truncated": False, "reason": "right" if right else "wrong", "answer": "7",
                    "gold": "7", "prompt": f"prompt {sample // 4} of step {step}",
                    "completion": f"<think>because</think><answer>{7 if right else 8}</answer>",
                }  # fmt: skip
                rollouts.write(to_json(row) + "\n")
    lines = [f"line {number}" for number in range(3_000)]
    lines[1_234] = "torch.OutOfMemoryError: CUDA out of memory"
    (logs / "console.log").write_text("\n".join(lines) + "\n")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SshBox]:
    root = tmp_path / "root"
    for name, rate in (("low", "1.0e-06"), ("high", "5.0e-05")):
        write_run(root, name, rate)
    with ssh_box(tmp_path, root) as box:
        yield box


def open_app(screen: Terminal, *shown: str) -> None:
    """Accept the host key and wait for the runs."""
    accept_host_key(screen)
    screen.wait_for(*(shown or ("high", "low", "200/400")), timeout=30)


def go_to(screen: Terminal, name: str, help_text: str) -> None:
    """Go to something by the command palette, which lists only this once the last letter has arrived."""
    screen.press(":")
    screen.wait_for("Search for commands")
    screen.type(name)
    line = re.compile(rf"^ +{re.escape(name)} +{re.escape(help_text)}", re.MULTILINE)
    eventually(lambda: line.search(screen.screen()), what=f"{name} in the palette")
    screen.press("Enter")
    screen.wait_gone(help_text)


@pytest.mark.parametrize("size", SIZES)
def test_from_a_spike_to_two_samples_and_back(box: SshBox, size: tuple[int, int]) -> None:
    with box.app(columns=size[0], rows=size[1]) as screen:
        open_app(screen)
        screen.press("2")
        screen.wait_for("range: 1–200", "grad_norm")
        go_to(screen, f"step {SPIKE}", "the charts at this step")
        screen.wait_for(f"step {SPIKE}", "9.75")
        box.proxy.reset()  # the way goes on over a new connection
        screen.press("Enter")
        screen.wait_for(f"step {SPIKE}", f"prompt 0 of step {SPIKE}")
        screen.press("Enter")
        screen.wait_for("because", "right", "wrong")
        screen.press("Space")
        screen.wait_for("1 marked")
        screen.press("j")
        screen.wait_for(f"│ prompt 1 of step {SPIKE}")
        screen.press("d")
        screen.wait_for("#0", "#1", "reward 2.000", "reward 0 ")
        screen.press("2")
        screen.wait_for(f"step {SPIKE}", "9.75")


@pytest.mark.parametrize("size", SIZES)
def test_three_marked_runs_are_compared(box: SshBox, tmp_path: Path, size: tuple[int, int]) -> None:
    write_run(tmp_path / "root", "middle", "2.0e-05")
    with box.app(columns=size[0], rows=size[1]) as screen:
        open_app(screen, "high", "middle", "low", "200/400")
        screen.press("g", "Space")
        screen.wait_for("1 marked")
        screen.press("j", "Space")
        screen.wait_for("2 marked")
        screen.press("G", "Space")
        screen.wait_for("3 marked")
        box.proxy.reset()
        screen.press("6")
        screen.wait_for("3 runs (A pinned)", timeout=60)
        if size[1] < 40:
            screen.wait_for("at the same · configuration")
            screen.press("t")
        screen.wait_for("1e-6", "2e-5", "5e-5", timeout=60)


@pytest.mark.parametrize("size", SIZES)
def test_a_log_is_searched_on_the_box(box: SshBox, size: tuple[int, int]) -> None:
    with box.app(columns=size[0], rows=size[1]) as screen:
        open_app(screen)
        screen.press("4")
        screen.wait_for("console.log", "line 2999")
        box.proxy.reset()
        screen.press("/")
        screen.wait_for("a regular expression")
        screen.type("OutOfMem")
        screen.press("Enter")
        screen.wait_for("torch.OutOfMemoryError", "line 1233", "line 1235")
        screen.press("Escape", "Escape", "Escape")
        screen.wait_for("200/400", "reward")
