"""The demo: its root, and the tiny model, made by the engine in a separate process. No Textual."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.installation import install_command
from remote.boxes import Box, local_box

CONFIG = "demo.yaml"
_PROGRESS = re.compile(r"progress\s+([0-9.]+)\s*(.*)")
"""A progress line of ``grpo-train tiny-model``: share done, description."""


class DemoError(UserError):
    """The tiny model cannot be made: the last output of the engine."""

    code = "no_engine"


def demo_root() -> Path:
    """Root of the demo: GRPO_TUI_DEMO_ROOT, else a folder in the user's data directory."""
    if given := os.environ.get("GRPO_TUI_DEMO_ROOT"):
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("grpo-tui")) / "demo"


def demo_box(root: Path) -> Box:
    """This machine, with the demo's root."""
    return replace(local_box(root, os.environ.get("GRPO_TUI_TMUX_SOCKET", "")), name="demo")


def model_path(root: Path) -> Path:
    """Where ``model.backbone: tiny`` is looked up."""
    return root / "models" / "tiny"


def model_exists(root: Path) -> bool:
    """Whether the tiny model has been made."""
    folder = model_path(root)
    return (folder / "config.json").exists() and any(folder.glob("*.safetensors"))


def engine_problem() -> str:
    """Why this environment cannot run the engine, with the command that adds it; "" if it can."""
    if sys.platform == "win32":
        from remote.transports.choice import WSL

        return f"--demo trains on this machine, but {WSL}"
    if find_spec("torch") is not None:
        return ""
    return f"--demo needs the training engine (torch), which is not installed here; run: {install_command('train')}"


async def make_model(root: Path, show: Callable[[float, str], None], command: list[str] | None = None) -> None:
    """Run ``grpo-train tiny-model`` and report its progress (share done, description). Raises DemoError."""
    target = model_path(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    argv = [*(command or local_box().engine or ["grpo-train"]), "tiny-model", "--out", str(target)]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise DemoError(f"cannot start {argv[0]}: {error.strerror or error}") from error
    last: deque[str] = deque(maxlen=12)
    assert process.stdout is not None
    try:
        while data := await process.stdout.readline():
            line = data.decode("utf-8", "replace").strip()
            if match := _PROGRESS.match(line):
                show(min(1.0, float(match[1])), match[2])
            elif line:
                last.append(line)
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise
    if code:
        raise DemoError("\n".join(last) or f"{argv[0]} exited with code {code}")
