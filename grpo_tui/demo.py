"""The demo's place, and the tiny model it needs, made by the engine as a process of its own. No Textual."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from remote.boxes import Box, local_box

CONFIG = "demo.yaml"
_PROGRESS = re.compile(r"progress\s+([0-9.]+)\s*(.*)")


class DemoError(Exception):
    """Why the tiny model could not be made; its last lines."""


def demo_root() -> Path:
    """Where the demo keeps its model and runs: GRPO_TUI_DEMO_ROOT, else the user's data directory."""
    if given := os.environ.get("GRPO_TUI_DEMO_ROOT"):
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("grpo-tui")) / "demo"


def demo_box(root: Path) -> Box:
    """This machine, with the demo's root."""
    return replace(local_box(root, os.environ.get("GRPO_TUI_TMUX_SOCKET", "")), name="demo")


def model_path(root: Path) -> Path:
    """Where ``model.backbone: tiny`` is found."""
    return root / "models" / "tiny"


def model_is_there(root: Path) -> bool:
    """Whether the tiny model has been made."""
    folder = model_path(root)
    return (folder / "config.json").exists() and any(folder.glob("*.safetensors"))


def engine_command() -> list[str]:
    """The engine beside this program."""
    script = Path(sys.executable).with_name("grpo-train")
    return [str(script)] if script.exists() else ["grpo-train"]


async def make_model(root: Path, show: Callable[[float, str], None], command: list[str] | None = None) -> None:
    """Run ``grpo-train tiny-model`` and pass its progress on. Raises DemoError with its last lines."""
    target = model_path(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    argv = [*(command or engine_command()), "tiny-model", "--out", str(target)]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise DemoError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
    last: deque[str] = deque(maxlen=12)
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            words = line.decode("utf-8", "replace").strip()
            if match := _PROGRESS.match(words):
                show(min(1.0, float(match[1])), match[2])
            elif words:
                last.append(words)
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise
    if code:
        raise DemoError("\n".join(last) or f"{argv[0]} ended with exit code {code}")
