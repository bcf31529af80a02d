"""What all views do alike, over a real sshd and tmux: runs are stopped, resumed and attached, and cuts are healed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.run_dir import open_run, write_manifest
from grpo_train.run_dir.files import to_json, utc_from
from tests.end_to_end.test_views import SIZES, STARTED, open_app, write_run
from tests.support.agent import eventually
from tests.support.ssh_box import SshBox, ssh_box
from tests.support.terminal import Terminal

FAKE_ENGINE = Path(__file__).resolve().parents[1] / "support" / "fake_engine.py"
VIEWS = {
    "1": (" runs 2 ", "needs you"),
    "2": ("smoothing:", "range: 1–200"),
    "3": ("groups by", "prompt 0 of step 200"),
    "4": ("console.log", "line 2999"),
    "5": ("last 2 hours", "CPU "),
    "6": ("two to twelve runs side by side", "marks the run"),
}
"""What each view shows, by its key."""
LOADING = {"2": "smoothing:", "3": "groups by", "4": "asking the box", "5": "last 2 hours", "6": "2 runs (A pinned)"}
"""What each shows before the box has answered."""


def resumable_run(root: Path, name: str) -> None:
    """A run with a checkpoint; the fake engine resumes it and writes no log."""
    write_run(root, name, "1.0e-06")
    run = open_run(root, name)
    (run.path / "launch.json").write_text(
        to_json({"time": utc_from(STARTED + 1800), "run": name, "argv": ["x"], "config_text": "frugal"})
    )
    folder = run.training_state / "step_20"
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(b"weights")
    write_manifest(folder, step=20)
    (run.training_state / "step_latest").symlink_to("step_20")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SshBox]:
    resumable_run(tmp_path / "root", "low")
    write_run(tmp_path / "root", "high", "5.0e-05")
    with ssh_box(tmp_path, tmp_path / "root", {"engine": [str(FAKE_ENGINE)]}) as box:
        yield box


@pytest.mark.parametrize("size", SIZES)
def test_a_run_is_handled_from_every_view(box: SshBox, size: tuple[int, int]) -> None:
    run = open_run(box.root, "low")

    def state() -> str:
        return run.observed_state().state

    with box.app(columns=size[0], rows=size[1]) as screen:
        open_app(screen)
        screen.press("g")
        screen.wait_for("✖ low  crashed")  # the selected one
        for key, shown in VIEWS.items():
            screen.press(key)
            screen.wait_for(*shown)
            screen.press("r")
            screen.wait_for("resume low", "exact command")
            screen.press("Enter")
            eventually(lambda: state() == "running", 30)
            screen.wait_for("low  running", *shown)
            attach_and_return(screen)
            screen.wait_for("low  running", *shown)
            screen.press("s")
            eventually(lambda: state() == "stopped", 30)
            screen.wait_for("low  stopped", *shown)


def attach_and_return(screen: Terminal) -> None:
    screen.press("a")
    screen.wait_for("To return")
    screen.press("Enter")
    screen.wait_for("[low] 0:")  # the status line of the box's tmux
    screen.press("C-b", "d")
    screen.wait_for("grpo-tui │ h200")


@pytest.mark.parametrize("size", SIZES)
def test_a_cut_while_a_view_loads(box: SshBox, size: tuple[int, int]) -> None:
    with box.app(columns=size[0], rows=size[1]) as screen:
        open_app(screen)
        screen.press("g", "Space")
        screen.wait_for("1 marked")
        screen.press("G", "Space")
        screen.wait_for("2 marked")
        for key, loading in LOADING.items():
            box.proxy.black_hole()
            screen.press(key)
            screen.wait_for(loading)
            box.proxy.resume() if key in "35" else box.proxy.reset()
            screen.wait_for(*(VIEWS[key] if key != "6" else ("B high", "reward")))
            screen.wait_gone("asking the box")
        screen.press("1")
        screen.wait_for(*VIEWS["1"], "● ", " ms")
