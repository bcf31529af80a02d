"""Facts about the machine, as the agent reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote import gate
from remote.agent import box as host
from remote.agent.box import BoxContext
from remote.protocol.box import BoxFactsRequest
from tests.support.clock import LeapingClock


def facts(root: Path) -> dict[str, Any]:
    box = BoxContext.from_settings({"root": str(root)})
    return gate.reply("box_facts", {"ok": True, "result": host.box_facts(box, BoxFactsRequest())})


def test_this_machine_has_facts(tmp_path: Path) -> None:
    reply = facts(tmp_path / "not" / "yet")
    assert reply["cpu_percent"] is None or 0 <= reply["cpu_percent"] <= 100
    assert 0 < reply["memory_used_mib"] < reply["memory_total_mib"]
    assert reply["disks"][0]["what"] == "root"
    assert 0 < reply["disks"][0]["used"] <= reply["disks"][0]["total"]


def test_processor_time_between_two_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_PROC", tmp_path)
    monkeypatch.setattr(host, "_last", None)
    clock = LeapingClock()
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1\n")
    assert host._cpu_percent(clock) is None, "no time has passed"
    stat.write_text("cpu  130 0 120 850 0 0 0 0 0 0\ncpu0 1\n")
    assert host._cpu_percent(clock) == pytest.approx(50)
    assert facts(tmp_path)["memory_total_mib"] is None
