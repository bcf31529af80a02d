"""The pictures in docs/views/: ``python scripts/pictures.py ROOT``, for a root with at least two runs.

Each is what the program draws at 120 x 40, on this machine as its own box.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

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


async def draw(root: Path, folder: Path, home: Path) -> None:
    """Write a picture of each view."""
    from grpo_tui.app import GrpoApp
    from grpo_tui.files import Options
    from remote.boxes import Box

    engine = [str(Path(sys.executable).with_name("grpo-train"))]
    box = Box("local", kind="local", root=str(root), engine=engine, price_per_hour=2.49)
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
    folder = Path(__file__).resolve().parents[1] / "docs" / "views"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HOME=home, XDG_STATE_HOME=home, XDG_CONFIG_HOME=home)
        asyncio.run(draw(Path(sys.argv[1]).resolve(), folder, Path(home)))


if __name__ == "__main__":
    main()
