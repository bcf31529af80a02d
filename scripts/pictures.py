"""The pictures in docs/views/, from golden runs: ``python scripts/pictures.py``, or ``make pictures``.

With a root, ``python scripts/pictures.py ROOT``, from its runs, of which there must be two. Each picture is what the
program draws at 120 x 40, on this machine as its own box.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
KEYS = {
    "home": ["1"],
    "charts": ["2", *["left"] * 25],
    "rollouts": ["3", "l", "l"],
    "logs": ["4"],
    "box": ["5"],
    "compare": ["1", "g", "space", "j", "space", "j", "space", "6", *["left"] * 12],
    "history": ["7"],
}
WAIT_S = 6.0


RATES = ("3.0e-5", "1.0e-4", "3.0e-4")


def train(root: Path) -> None:
    """The demo with three learning rates, each evaluated: some ten minutes on two cores."""
    import torch

    from grpo_train.tiny.model import make_tiny_model
    from tests.support.engine import train_here
    from tests.support.evaluating import evaluate_here

    make_tiny_model(root / "models" / "tiny", seed=0)
    torch.set_num_threads(1)
    config = REPOSITORY / "config" / "demo.yaml"
    for rate in RATES:
        name = f"sums_{rate.replace('.0', '')}"
        train_here(root, config, name, "--set", f"optimizer.learning_rate={rate}", "--set", "run.total_steps=60")
        assert evaluate_here(root, name, steps="all") == 0


def golden_root(root: Path) -> None:
    """A copy of the runs, which are trained where pytest's cache does not have them for these sources."""
    from tests.support.golden import kept, key

    def mkdir(name: str) -> Path:
        folder = REPOSITORY / ".pytest_cache" / "d" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    cache: Any = SimpleNamespace(mkdir=mkdir)  # as pytest's
    sources = key("grpo_train", "config/demo.yaml")
    shutil.copytree(kept(cache, "pictured", sources, train), root, symlinks=True)


async def draw(root: Path, folder: Path, home: Path) -> None:
    """Write a picture of each view."""
    from grpo_tui.app import GrpoApp
    from grpo_tui.files import Options
    from remote.boxes import Box

    engine = [str(Path(sys.executable).with_name("grpo-train"))]
    sessions = "grpo-pictures"  # a tmux server without sessions
    box = Box("local", kind="local", root=str(root), engine=engine, price_per_hour=2.49, tmux_socket=sessions)
    app = GrpoApp(Options(box, history=home / "history.sqlite"))
    app.animation_level = "none"
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(WAIT_S)
        for name, keys in KEYS.items():
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.3)
            await pilot.pause(WAIT_S)
            (folder / f"{name}.svg").write_text(app.export_screenshot(title=f"grpo-tui: {name}"))


def main() -> None:
    folder = REPOSITORY / "docs" / "views"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="grpo-") as home:
        root = Path(sys.argv[1]).resolve() if sys.argv[1:] else Path(home) / "localfs"
        if not sys.argv[1:]:
            golden_root(root)
        os.environ.update(HOME=home, XDG_STATE_HOME=home, XDG_CONFIG_HOME=home)
        asyncio.run(draw(root, folder, Path(home)))


if __name__ == "__main__":
    main()
