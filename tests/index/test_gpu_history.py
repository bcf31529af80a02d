"""What the GPUs did, from the end of a run's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remote.index import log_answers
from remote.protocol.box import NO_VALUE
from tests.support.index import Box, make_run

START = 1_795_000_000.0


def rows(count: int) -> list[dict[str, Any]]:
    """Two GPUs every ten seconds."""
    from datetime import datetime, timezone

    found = []
    for index in range(count):
        time = datetime.fromtimestamp(START + 10 * index, timezone.utc).isoformat().replace("+00:00", "Z")
        for gpu in (0, 1):
            found.append({"time": time, "index": gpu, "utilization_percent": float(index % 100), "power_w": None})
    return found


def test_columns_are_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_answers, "CHUNK", 4_096)
    logs = make_run(tmp_path / "root")
    (logs / "gpu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(2_000)) + "{damaged\n")
    box = Box(tmp_path / "root", tmp_path)
    reply = box.ask("gpu_history", low=START + 10_000.0, high=START + 12_000.0, columns=20)
    assert [row["index"] for row in reply["histories"]] == [0, 1]
    times, use, memory, power, _ = reply["histories"][1]["columns"]
    assert len(times) == 20
    assert times[0] == START + 10_090
    assert times[-1] == START + 12_000
    assert use[0] == pytest.approx(4.5)
    assert set(memory) == set(power) == {NO_VALUE}
    nothing = box.ask("gpu_history", low=START - 500.0, high=START - 100.0, columns=20)
    assert nothing["histories"] == []


def test_a_run_without_samples(tmp_path: Path) -> None:
    make_run(tmp_path / "root")
    assert Box(tmp_path / "root", tmp_path).ask("gpu_history", low=0.0, high=1.0)["histories"] == []
