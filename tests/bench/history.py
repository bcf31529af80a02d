"""Queries over the history: ``python tests/bench/history.py``. Prints one line per measurement, wall and CPU time (aim:
1,000 runs within 100 ms)."""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.history.database import Database, News
from grpo_train.history.listing import cells, find
from grpo_train.run_dir.files import utc_from

METRICS, KEYS = 60, 120
QUERIES = (
    "state:finished reward>0.5 sort:-reward",
    "cfg.optimizer.learning_rate>=1e-5 task:gsm8k",
    "name~night cost<10 since:3650d box:h200-a backup:none eval.accuracy>0.6 sort:-reward",
    "max.metric/7>0.5",
)


def fill(database: Database, count: int) -> None:
    """Write many runs with full records."""
    dice = random.Random(1)
    news = []
    for index in range(count):
        began = 1_790_000_000.0 + 3600 * index
        config = {f"section{key % 10}.key{key}": key for key in range(KEYS)}
        config |= {
            "task.name": "gsm8k_r1",
            "optimizer.learning_rate": dice.choice((1e-6, 1e-5, 2e-5)),
            "run.seed": index,
        }
        rows = [{"step": 10 * step, "accuracy": dice.random(), "n": 200} for step in range(10)]
        summary = {
            "state": dice.choice(("finished", "crashed")), "step": 100, "reward": dice.random(), "run_seconds": 3600.0,
            "launched_at": utc_from(began), "updated_at": utc_from(began + 3600),
        }  # fmt: skip
        news.append(
            News(
                f"{index:016x}", "h200-a", "/r", f"{dice.choice(('night', 'day'))}-{index}", summary=summary,
                config=config, metrics={f"metric/{one}": [dice.random(), 0.0, 1.0] for one in range(METRICS)},
                evaluations=[{"dataset": "gsm8k_r1", "state": "finished", "rows": rows}], events=[],
                spans=[(began, began + 3600)],
            )
        )  # fmt: skip
    database.box_heard("h200-a", "/r", {0.0: 2.49}, 0.0)
    database.write(news)


def measure(count: int) -> None:
    """Print the measurements over a number of runs."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "history.sqlite")
        began = time.perf_counter()
        fill(database, count)
        size = database.path.stat().st_size / 2**20
        print(f"{count:>6,} runs written in {time.perf_counter() - began:.2f} s, {size:.0f} MiB")
        for query in QUERIES:
            times, cpu = [], []
            for _ in range(5):
                began, used = time.perf_counter(), time.process_time()
                found, columns = find(database.records(), query)
                cells(found, columns)
                times.append(time.perf_counter() - began)
                cpu.append(time.process_time() - used)
            wall = f"{1000 * statistics.median(times):7.1f} ms, CPU {1000 * statistics.median(cpu):7.1f} ms"
            print(f"{count:>6,} runs  {wall}  {len(found):>6,} found  {query}", flush=True)


def main() -> None:
    for count in (1_000, 10_000):
        measure(count)


if __name__ == "__main__":
    main()
