"""What all views do alike, over a real sshd and tmux: runs are stopped, resumed and attached, and cuts are healed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from grpo_train.run_dir import open_run, write_manifest
from grpo_train.run_dir.files import to_json, utc_from
from tests.end_to_end.test_views import STARTED, open_app, write_run
from tests.support.agent import eventually
from tests.support.ssh_box import SshBox, ssh_box
from tests.support.terminal import Terminal

FAKE_ENGINE = Path(__file__).resolve().parents[1] / "support" / "fake_engine.py"
VIEWS = {
    "1": (" runs 2 ", "needs you"),
    "2": ("line:", "range: 1–200"),
    "3": ("groups by", "prompt 0 of step 200"),
    "4": ("console.log", "line 2990"),  # above the message
    "5": ("last 2 hours", "CPU "),
    "6": ("two to twelve runs side by side",),
}
"""What each view shows, by its key."""
LOADING = {"2": "line:", "4": "asking the box", "6": "2 runs (A pinned)", "3": "groups by", "5": "last 2 hours"}
"""What each shows before the box has answered."""
SIZES = {(120, 40): "7 history", (80, 24): "6 7"}
"""Of the terminal, and a part of the app's last line there."""


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


class Sizes:
    """A terminal that changes between :data:`SIZES` whenever it has shown something."""

    def __init__(self, screen: Terminal) -> None:
        self.screen = screen
        self._others = cycle([(80, 24), (120, 40)])

    def show(self, *texts: str) -> None:
        """Wait for texts in the present size and in the other one, which stays."""
        self.screen.wait_for(*texts)
        size = next(self._others)
        self.screen.resize(*size)
        self.screen.wait_for(*texts, SIZES[size])


def test_a_run_is_handled_from_every_view(box: SshBox) -> None:
    """Three times a view, the terminal changes its size: what a view shows is looked for in both."""
    run = open_run(box.root, "low")

    def state() -> str:
        return run.observed_state().state

    with box.app() as screen:
        sizes = Sizes(screen)
        open_app(screen)
        screen.press("g")
        screen.wait_for("✖ low  crashed")  # the selected one
        for key, shown in VIEWS.items():
            screen.press(key)
            sizes.show(*shown)
            screen.press("r")
            screen.wait_for("resume low", "exact command")
            screen.press("Enter")
            eventually(lambda: state() == "running", 30)
            sizes.show("low  running", *shown)
            attach_and_return(screen)
            screen.wait_for("low  running", *shown)
            screen.press("s")
            screen.wait_for("Stop low on")
            screen.press("Enter")
            eventually(lambda: state() == "stopped", 30)
            sizes.show("low  stopped", *shown)


def attach_and_return(screen: Terminal) -> None:
    screen.press("a")
    screen.wait_for("To return")
    screen.press("Enter")
    screen.wait_for("[low] 0:")  # the status line of the box's tmux
    screen.detach("low")
    screen.wait_for("grpo-tui │ h200")


def test_a_cut_while_a_view_loads(box: SshBox) -> None:
    """In both sizes of the terminal."""
    with box.app() as screen:
        sizes = Sizes(screen)
        open_app(screen)
        screen.press("g", "Space")
        screen.wait_for("1 marked")
        screen.press("G", "Space")
        screen.wait_for("2 marked")
        for key, loading in LOADING.items():
            box.proxy.black_hole()
            screen.press(key)
            sizes.show(loading)
            box.proxy.resume() if key in "35" else box.proxy.reset()
            sizes.show(*(VIEWS[key] if key != "6" else ("B high", "reward")))
            screen.wait_gone("asking the box")
        screen.press("1")
        sizes.show(*VIEWS["1"], "● ", " ms")
