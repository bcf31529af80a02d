"""The compare view over runs of 50,000 steps: ``python tests/bench/compare.py [FOLDER]``.

Makes 20 runs in FOLDER (kept) or a temporary one, indexes them, and opens the view on 12 of them, which is its maximum.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_tui.app import GrpoApp
from grpo_tui.files import Options
from grpo_tui.views.compare.model import LETTERS
from remote.boxes import Box
from tests.bench.index import METRICS, Bench, cpu, row, write_run

RUNS, STEPS = 20, 50_000


def indexed(root: Path) -> None:
    """Twenty runs with whole indexes; prints what twenty requests take."""
    names = [f"compared{number:02}" for number in range(RUNS)]
    for name in names:
        write_run(root, name, STEPS, METRICS[:12])
    bench = Bench(root)
    for name in names:
        bench.whole("series", name, metrics=["reward"])
    params = {"metrics": ["reward", "grad_norm", ":step", ":time", "num_tokens", "time/step"], "width": 240}
    began, size, before = time.perf_counter(), 0, sum(map(cpu, bench.pids()))
    for name in names:
        bench.ask("series", name, **params)
        size += bench.bytes
    row(f"{RUNS} runs, indexed: what the view asks", f"{time.perf_counter() - began:.2f} s", "1 s")
    row("  processor time of the box for it", f"{sum(map(cpu, bench.pids())) - before:.2f} s", "1 s")
    row("  bytes of the replies", f"{size / 1e3:.0f} kB", "1 MB")
    bench.close()


def memory() -> int:
    """Memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


async def opened(root: Path) -> dict[str, float]:
    """Open the view in an app without a terminal: what it takes from the key to the whole picture."""
    app = GrpoApp(Options(Box("local", kind="local", root=str(root))))
    async with app.run_test(size=(120, 40)) as pilot:
        while not app.store.runs:
            await asyncio.sleep(0.02)
        before = memory()
        for run in app.store.runs[: len(LETTERS)]:
            app.store.marks.toggle(run.name)
        began, used = time.perf_counter(), time.process_time()
        await pilot.press("6")
        runs = app.views.compare.comparison.runs
        while not runs or not all(run.curves.track for run in runs):
            await asyncio.sleep(0.01)
            runs = app.views.compare.comparison.runs
        app.tick()
        await pilot.pause()
        taken = time.perf_counter() - began
        used = time.process_time() - used
        return {"seconds": taken, "used": used, "runs": len(runs), "before": before, "after": memory()}


def main() -> None:
    if "--app" in sys.argv:
        print(json.dumps(asyncio.run(opened(Path(sys.argv[1])))))
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    print(f"load {os.getloadavg()[0]:.1f}")
    try:
        indexed(folder)
        for state in ("never indexed by this agent", *["indexed"] * 3):
            done = subprocess.run(
                [sys.executable, __file__, str(folder), "--app"], check=True, capture_output=True, text=True
            )
            found = json.loads(done.stdout.strip().rpartition("\n")[2])
            aim = "1 s" if state == "indexed" else ""
            row(f"{found['runs']} runs in the app, from the key on, {state}", f"{found['seconds']:.2f} s", aim)
            row("  processor time of the app", f"{found['used']:.2f} s")
            row("  memory of the app, before and with them", f"{found['before']}, {found['after']} MiB", "150 MiB")
    finally:
        if len(sys.argv) == 1:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
