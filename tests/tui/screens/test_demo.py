from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from grpo_tui.dialogs.demo import DemoSetupScreen
from grpo_tui.dialogs.launch import LaunchScreen
from remote.boxes import Box
from tests.tui.conftest import Start
from tests.tui.fake import FakeClient


@pytest.mark.parametrize("types_early", [False, True])
async def test_demo_makes_the_model_and_launches(start: Start, tmp_path: Path, types_early: bool) -> None:
    """Keys that are typed while the model is made are for the app."""
    go = tmp_path / "go"
    os.mkfifo(go)
    ready = os.open(go, os.O_RDWR)  # waits for no reader
    maker = tmp_path / "maker.py"
    maker.write_text(
        "import sys, pathlib\n"
        "print('progress 0.50 warm start, step 10', flush=True)\n"
        "open(sys.argv[1]).read(1)\n"
        "out = pathlib.Path(sys.argv[-1]); out.mkdir(parents=True)\n"
        "(out / 'config.json').write_text('{}'); (out / 'model.safetensors').write_text('')\n"
        "print('progress 1.00 done', flush=True)\n"
    )

    def script(client: FakeClient) -> None:
        client.answers["list_configs"] = {"configs": [{"name": "demo.yaml"}], "folder": "/elsewhere"}

    command = [sys.executable, str(maker), str(go)]
    async with start(script, box=Box("demo", kind="local"), demo_root=tmp_path, model_command=command) as session:
        await session.until(lambda: isinstance(session.app.screen, DemoSetupScreen))
        if types_early:
            await session.press("n", "enter")
        os.write(ready, b"x")
        await session.until(lambda: (tmp_path / "models/tiny/config.json").exists())
        if not types_early:
            await session.until_text("no runs yet", "press n, then enter")
            await session.press("n")
            await session.until(lambda: isinstance(session.app.screen, LaunchScreen))
            await session.until(lambda: session.app.focused is not None and session.app.focused.id == "go")
            await session.press("enter")
        await session.until(lambda: session.app.store.selected == "run_new")
    os.close(ready)


async def test_failed_model_shows_its_output(start: Start, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('boom: no torch'); raise SystemExit(3)"]
    async with start(lambda client: None, demo_root=tmp_path, model_command=command) as session:
        await session.until(lambda: isinstance(session.app.screen, DemoSetupScreen))
        await session.until_text("cannot make the tiny model", "boom: no torch", "Try again")
