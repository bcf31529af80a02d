"""Logs of a real size, written within seconds."""

from __future__ import annotations

import json
import random
from itertools import cycle, islice
from pathlib import Path

from grpo_train.run_dir.files import to_json

LEVEL = 3.25
"""``reward`` of every step."""
SPIKE = 9.75
"""``grad_norm`` of one step; the others are below 1."""
_METRICS = 45
_VARIANTS = 997


def new_run(root: Path, name: str, steps: int) -> Path:
    """A finished run without logs; returns their folder."""
    folder = root / "training_runs" / name
    logs = folder / "logs"
    logs.mkdir(parents=True)
    (folder / "launch.json").write_text(to_json({"time": "2026-11-22T08:00:00.000Z", "run": name, "argv": ["x"]}))
    status = {"state": "finished", "step": steps, "total_steps": steps, "updated_at": "2026-11-22T09:00:00.000Z"}
    (folder / "status.json").write_text(to_json(status))
    return logs


def write_train_log(logs: Path, steps: int, spike: int) -> int:
    """A ``train_log.jsonl`` with 48 metrics a step, about 2 kB each; returns its size."""
    chance = random.Random(steps)
    tails = [
        json.dumps({f"group/metric_{i:02}": chance.random() for i in range(_METRICS)})[1:] for _ in range(_VARIANTS)
    ]
    with (logs / "train_log.jsonl").open("w") as file:
        for step, tail in enumerate(islice(cycle(tails), steps), 1):
            time = f"2026-11-22T{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}.000Z"
            norm = SPIKE if step == spike else chance.random()
            file.write(
                f'{{"step": {step}, "time": "{time}", "reward": {LEVEL}, "grad_norm": {norm}, "kl": 0.01, {tail}\n'
            )
        return file.tell()


def write_console(logs: Path, size: int, planted: dict[float, str]) -> int:
    """A ``console.log`` of about ``size`` bytes; ``planted``: lines by their share of the file. Returns its lines."""
    block = b"".join(b"%06d step saved, 64 prompts x 8 samples, 211 tokens a completion\n" % i for i in range(16_000))
    blocks = -(-size // len(block))
    at = {int(share * blocks): text for share, text in planted.items()}
    with (logs / "console.log").open("wb") as file:
        for number in range(blocks):
            if number in at:
                file.write(at[number].encode() + b"\n")
            file.write(block)
    return blocks * 16_000 + len(at)
