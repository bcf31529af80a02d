"""Rows of a scripted run's logs, and of the list of runs."""

from __future__ import annotations

import math
import random
import re
from datetime import datetime, timezone
from typing import Any

from grpo_train.run_dir.files import to_json
from grpo_train.run_dir.tokens import UNKNOWN, encode_tokens

NOW = 1_795_000_000.0
"""The time of the tests' clock, which does not move."""
RUN = "run_gsm8k_demo"
LOGS = f"training_runs/{RUN}/logs"


def at(seconds_ago: float) -> str:
    moment = datetime.fromtimestamp(NOW - seconds_ago, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def train_rows(steps: int, seed: int = 0, last_age: float = 2.0, nan_at: int | None = None) -> list[dict[str, Any]]:
    """Rows of train_log.jsonl of a run that learns."""
    dice = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        share = 1 - math.exp(-step / (0.4 * max(steps, 60)))
        rows.append(
            {
                "step": step,
                "time": at(last_age + 3.1 * (steps - step)),
                "loss": math.nan if step == nan_at else dice.gauss(-0.004, 0.006),
                "reward": 0.9 + 0.85 * share + dice.gauss(0, 0.07),
                "reward_std": 0.6 - 0.3 * share,
                "frac_reward_zero_std": min(1.0, 0.1 + 0.5 * share + abs(dice.gauss(0, 0.05))),
                "completions/mean_length": 64 - 18 * share + dice.gauss(0, 1.5),
                "completions/clipped_ratio": 0.02,
                "entropy": 0.4 - 0.25 * share + dice.gauss(0, 0.01),
                "grad_norm": 0.18 + abs(dice.gauss(0, 0.06)) + (1.4 if step == 41 else 0),
                "learning_rate": 1e-4,
                "time/rollout": 1.9,
                "time/train": 1.0,
                "time/save": 0.05,
                "time/step": 3.1,
            }
        )
    return rows


Record = dict[str, Any]


def no_signal(share: float) -> Record:
    """The warning of a step whose groups are mostly equal."""
    message = f"{share:.0%} of groups carry no signal ({share:.0%} all correct)"
    return {"code": "no_signal", "level": "warning", "message": message, "share": share}


def off_policy(ess: float) -> Record:
    """The warning of a step whose samples are off-policy."""
    message = f"effective sample size {ess:.0%} of the completions: samples are off-policy"
    return {"code": "off_policy", "level": "warning", "message": message, "ess": ess}


NEAR_ZERO: Record = {
    "code": "loss_near_zero", "level": "info", "message": "a loss near zero is expected on-policy; watch the reward",
}  # fmt: skip


def batch_advice(scale: float) -> Record:
    """The advice of a step with a measured noise scale."""
    message = (
        f"The gradient noise scale recommends about {scale:.0f} prompt groups ({8 * scale:.0f} completions) per step "
        "(95 % interval 131 to 402); the current 8 prompt groups (64 completions) are far below it: "
        "a larger batch would need far fewer steps."
    )
    return {"code": "batch_size", "level": "info", "message": message, "scale": scale}


def healthy(row: dict[str, Any], *records: Record) -> dict[str, Any]:
    """A row with health records and the metrics behind them."""
    return {
        **row, "groups/all_correct": 0.5, "groups/all_wrong": 0.0, "groups/all_equal": 0.03125, "ess/token": 0.9987,
        "ess/sequence": 0.4412, "ess/token_clipped": 0.9989, "ess/sequence_clipped": 0.52, "clip_ratio/low_mean": 0.001,
        "clip_ratio/high_mean": 0.0, "mismatch/kl": 0.00018, "mismatch/outside_0.9_1.1": 0.004,
        "gns/b_simple": 212.4, "gns/b_simple_low": math.nan, "gns/b_simple_high": math.nan,
        "gns/b_simple_completions": 1699.0, "time/score": 0.4, "health": list(records),
    }  # fmt: skip


def ailing_rows(steps: int) -> list[dict[str, Any]]:
    """Off-policy in steps 30 to 32, most groups equal from step 60 on; the numbers move."""
    rows = []
    for row in train_rows(steps):
        step, records = row["step"], []
        if 30 <= step < 33:
            records.append(off_policy(0.4 + step / 1000))
        if step >= 60:
            records.append(no_signal(0.4 + step / 500))
        records.append(NEAR_ZERO)
        if step >= 10:
            records.append(batch_advice(200 + step / 7))
        rows.append(healthy(row, *records))
    return rows


def rollout_rows(step: int, count: int = 8) -> list[dict[str, Any]]:
    dice = random.Random(step)
    rows = []
    for sample in range(count):
        a, b = dice.randint(10, 99), dice.randint(10, 99)
        right = dice.random() < 0.7 or sample == count - 1
        answer = a + b if right else a + b + dice.choice((-10, 1, 10))
        rows.append(
            {
                "step": step,
                "time": at(2.0),
                "group": sample // 4,
                "sample": sample % 4,
                "prompt": f"Add the numbers. Think inside <think></think>, then answer.\nWhat is {a} + {b}?\n",
                "completion": f"<think>{a % 10} + {b % 10} = {a % 10 + b % 10}, "
                f"{a // 10} + {b // 10} = {a // 10 + b // 10}"
                f"{', carry 1' if a % 10 + b % 10 > 9 else ''}</think>\n<answer>{answer}</answer>",
                "reward": 2.0 if right else 0.0,
                "gold": str(a + b),
            }
        )
    return rows


def token_lines(rows: list[dict[str, Any]], skipped: int = 3) -> list[dict[str, Any]]:
    """Lines of ``tokens.jsonl`` for rows of one step: a token a word, all classes of values; the completion ``skipped``
    of each group without a pass of the trainer."""
    groups: dict[int, dict[str, str]] = {}
    for row in rows:
        words = re.findall(r"</?\w+>|\s*[^\s<]+|\s", row["completion"])
        places = range(len(words) + 1)  # and the end
        known = row["sample"] != skipped
        groups.setdefault(row["group"], {})[str(row["sample"])] = encode_tokens(
            [*map(len, words), 0],
            bytes([1, 30, 75, 120, 200][at % 5] for at in places),
            bytes([2, 80, 110, 140, 160][at % 5] if known else UNKNOWN for at in places),
            bytes([20, 60, 127, 170, 240][at % 5] if known else UNKNOWN for at in places),
            [at % 4 if known else 0 for at in places],
        )
    step = rows[0]["step"]
    return [{"step": step, "of": step, "group": group, "tokens": tokens} for group, tokens in groups.items()]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(to_json(row) + "\n" for row in rows).encode()


def summary(run: str, state: str, **more: Any) -> dict[str, Any]:
    row = {
        "run": run, "state": state, "host": "", "layout": "run", "step": 0, "total_steps": 200, "reward": None,
        "step_seconds": 3.1, "logged_at": at(2), "started_at": at(600), "updated_at": at(2), "run_seconds": 600.0,
        "stage": "train", "exit_code": None, "error": None, "restarts": 0, "nproc": 2, "stop_asked": False,
    }  # fmt: skip
    return {**row, **more}
