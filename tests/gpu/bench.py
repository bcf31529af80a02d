"""``python -m tests.gpu.bench [--out FILE]``: the figures of a GPU, at most 8 minutes; a table, and JSON in FILE.

Runs ``grpo-train bench`` with Qwen2.5-1.5B's shape: as LoRA and with all weights trained, then
``tests/bench/against.py`` beside ``generate`` and TRL. What does not fit into the time is left out and named. Run
``python -m pytest -s tests/gpu`` first: what is wrong is not worth measuring. ``--model tiny`` tries the script on a
CPU. Not run as a whole on a GPU yet.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 480
BENCH = ("grpo_train.cli", "bench")
PARTS = {
    "LoRA": (*BENCH, "--set", "model.adapter=lora"),
    "all weights": (*BENCH, "--set", "model.adapter=none"),
    "against": ("tests.bench.against", "--set", "rollout.max_completion_length=128"),
}


def measure(options: list[str], seconds: float) -> dict[str, Any]:
    """The JSON of a module, or ``{"problem"}``; interrupted with its child after ``seconds``, so that it
    removes its files."""
    command = [sys.executable, "-m", *options, "--json", "--repeats", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            return {"problem": f"did not end within {LIMIT_S} s"}
    found: dict[str, Any] = json.loads(out) if process.returncode == 0 else {"problem": f"exit {process.returncode}"}
    return found


def lines(part: str, found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Figure, aim and measurement."""
    if "problem" in found:
        return [(part, "", f"not measured: {found['problem']}")]
    rows = []
    for figure in found.get("figures", ()):
        aim = {"train": ">= 45%"}.get(figure["name"], "")
        if figure["name"] == "decode" and figure["rows"] in (64, 256):
            aim = ">= 60%"
        name = f"{figure['name']} {figure['rows'] or ''}".strip()
        rate = figure["amount"] / figure["seconds"]
        rows.append((f"{part}: {name}", aim, f"{figure['share']:.1%} of the floor, {rate:,.0f} {figure['unit']}/s"))
    for name, each in found.items() if "figures" not in found else ():
        aim = ">= 5x" if name == "trl" else ">= 8x" if "256" in name else ""
        value = f"{each['ratio']:.2f}x" if "ratio" in each else f"not measured: {each['problem']}"
        rows.append((f"{part}: {name}", aim, value))
        if each.get("theirs_above_bytes"):
            ratio = each["ours_above_bytes"] / each["theirs_above_bytes"]
            rows.append((f"{part}: memory above weights and optimizer / TRL's", "<= 0.5", f"{ratio:.2f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="qwen2_5_15")
    parser.add_argument("--out", type=Path, help="File for the JSON")
    options = parser.parse_args()
    end = time.monotonic() + LIMIT_S
    found = {
        part: measure([*changes, "--model", options.model], max(1.0, end - time.monotonic()))
        for part, changes in PARTS.items()
    }
    first = next((each for each in found.values() if "device" in each), None)
    if first:
        rates = first["rates"]
        print(f"{first['device']}, {first['dtype']}, {first['versions']}")
        print(f"copy {rates['copy'] / 1e9:,.0f} GB/s, matrix products {rates['products'] / 1e12:,.1f} TFLOP/s")
    for name, aim, value in (line for part, each in found.items() for line in lines(part, each)):
        print(f"{name:<60} {aim:<8} {value}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(0 if first else 1)


if __name__ == "__main__":
    main()
