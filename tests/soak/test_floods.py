"""Every flood for a minute: client and app stay small, idle and quick to quit. Part of ``make soak``.

FLOOD_SECONDS sets the length.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support import flooded_client
from tests.support.flooded_client import resident_mb
from tests.support.floods import FLOODS, WITHIN_CREDIT
from tests.support.hostile_box import Script, app_command, send
from tests.support.terminal import Terminal

ALL = {**FLOODS, **WITHIN_CREDIT}
SECONDS = float(os.environ.get("FLOOD_SECONDS", "60"))


@pytest.mark.parametrize("flood", ALL, ids=lambda flood: flood.__name__)
def test_a_flooded_client_stays_small(flood: Script) -> None:
    outcome = flooded_client.outcome(flooded_client.start(flood.__name__, SECONDS), SECONDS + 60)
    print(f"{flood.__name__}: {outcome}")
    outcome.assert_bounded(ALL[flood])


@pytest.fixture(scope="module")
def undisturbed_mb(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Memory of the app with an honest box."""
    folder = tmp_path_factory.mktemp("honest")
    with app(folder, send, []) as screen:
        screen.wait_for("local")
        time.sleep(5)
        return resident_mb("VmHWM", pid_of(folder))


@pytest.mark.parametrize("flood", ALL, ids=lambda flood: flood.__name__)
def test_a_flooded_app_stays_small(flood: Script, tmp_path: Path, undisturbed_mb: float) -> None:
    with app(tmp_path, flood) as screen:
        screen.wait_for("local")
        pid = pid_of(tmp_path)
        time.sleep(3)  # the app's start
        cpu, began = cpu_seconds(pid), time.monotonic()
        time.sleep(SECONDS)
        cores = (cpu_seconds(pid) - cpu) / (time.monotonic() - began)
        memory = resident_mb("VmHWM", pid) - undisturbed_mb
        screen.press("q")
        pressed = time.monotonic()
        while is_running(pid) and time.monotonic() < pressed + 10:
            time.sleep(0.01)
        quit_s = time.monotonic() - pressed
        print(f"{flood.__name__}: {memory:.0f} MB, {cores:.2f} cores, quit {quit_s:.2f} s")
        assert memory < 150
        assert cores < 0.5
        assert quit_s < 1.0


def app(folder: Path, flood: Script, *arguments: object) -> Terminal:
    environment = {"HOME": str(folder), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    return Terminal([str(app_command(folder, flood, *arguments)), "--root", str(folder)], environment)


def pid_of(folder: Path) -> int:
    return int((folder / "pid").read_text())


def is_running(pid: int) -> bool:
    """Whether a process has not exited; tmux may collect it late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it is read
        return False


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
