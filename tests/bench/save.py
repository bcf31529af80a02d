"""What a save costs training, on this disk and on one that takes 100 ms more for each write.

python tests/bench/save.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_jsonl
from grpo_train.run_dir.manifest import HashedFile
from grpo_train.tiny.model import WarmStart, make_tiny_model
from tests.support.engine import train_here, write_config

STEPS = 160
EVERY = 80
DELAY_S = 0.1


def main() -> None:
    """Print the measurements."""
    print(f"{'disk':<22}{'a save took':>13}{'training waited':>17}{'share':>8}{'step beside it':>16}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_tiny_model(root / "models" / "tiny", warm_start=WarmStart(steps=12, batch_size=8))
        cfg = write_config(root, run__total_steps=STEPS, run__save_every=EVERY)
        _show("as it is", train_here(root, cfg, "fast"))
        write = HashedFile.write

        def slowly(file: HashedFile, data: bytes | bytearray | memoryview) -> int:
            time.sleep(DELAY_S)
            return write(file, data)

        HashedFile.write = slowly  # type: ignore[method-assign]
        _show("100 ms more a write", train_here(root, cfg, "slow"))


def _show(label: str, run: RunDir) -> None:
    rows = {row["step"]: row for _, row in read_jsonl(run.logs / "train_log.jsonl")}
    saves = [event["seconds"] for _, event in run.events() if event["event"] == "saved"]
    waited = rows[EVERY + 1]["time/save"]
    usual = statistics.median(rows[step]["time/step"] for step in range(EVERY // 2, EVERY))
    beside = 0.0
    count, left = 0, saves[0] - waited
    for step in range(EVERY + 1, STEPS):
        seconds = rows[step]["time/step"] - rows[step]["time/save"]
        if left < seconds:
            break
        beside, count, left = beside + seconds, count + 1, left - seconds
    ratio = f"{beside / count / usual:.2f}" if count else "-"
    print(f"{label:<22}{saves[0]:>11.2f} s{waited:>15.3f} s{waited / saves[0]:>8.1%}{ratio:>16}")


if __name__ == "__main__":
    main()
