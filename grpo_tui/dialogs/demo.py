"""The demo: its root, and the first start, which makes the tiny model and shows the progress."""

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
from shutil import which
from typing import TYPE_CHECKING

from textual import events, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, ProgressBar, Static

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.installation import from_uvx, install_command
from grpo_tui.kit.dialog import Dialog
from grpo_tui.kit.panel import Excerpt
from remote.boxes import Box, local_box

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

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


def machine_problem() -> str:
    """Why this machine cannot run the demo, with or without the engine, and the fix; "" if it can."""
    if sys.platform == "win32":
        from remote.transports.choice import WSL

        return f"--demo trains on this machine, but {WSL}"
    if not which("tmux"):
        command = "brew install tmux" if sys.platform == "darwin" else "sudo apt-get install -y tmux"
        return f"--demo trains in tmux, which is not installed; run: {command} (or as your system installs it)"
    return ""


def engine_is_missing() -> bool:
    """Whether this environment lacks the engine."""
    return find_spec("torch") is None


def engine_problem() -> str:
    """Why this machine or environment cannot run the demo, with the command that fixes it; "" if it can."""
    if (problem := machine_problem()) or not engine_is_missing():
        return problem
    command = install_command("train") + (" --demo" if from_uvx() else "")
    return f"--demo needs the training engine (torch), which is not installed here; run: {command}"


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


def launch_hint(key: str) -> str:
    """What the demo says in place of runs."""
    return (
        f"press [bold $primary]{key}[/], then [bold $primary]enter[/] to teach a tiny model to add\n\n"
        "[$grpo-muted]half of its sums are correct at first; watch the reward rise[/]"
    )


async def make_demo(app: Desk, command: list[str] | None) -> None:
    """Make the model of the demo unless it exists; exit the app if the user quits."""
    root = app.options.demo_root
    if root is None or model_exists(root):
        return
    dialog = DemoSetupScreen(root, command)
    if await app.show_dialog(dialog):
        app.held_keys.pass_on(dialog.unused)
    else:
        app.exit()


class DemoSetupScreen(Dialog[bool]):
    """Dismissed with True once the model exists, with False if the user quits."""

    heading = "first use: making a tiny model"

    def __init__(self, root: Path, command: list[str] | None = None) -> None:
        super().__init__()
        self.root, self.command = root, command
        self.unused: list[events.Key] = []
        """Keys that this dialog has no use for: they are typed for the app, which is behind it."""

    def compose_body(self) -> ComposeResult:
        yield Static(
            Content.from_markup(
                "A language model with one million parameters learns the format of additions on this machine's CPU. "
                "This takes about a minute, once. Reinforcement learning then teaches it to add correctly.\n"
            ),
            classes="message",
        )
        yield ProgressBar(total=1.0, show_eta=False, id="bar")
        yield Static("", id="progress-line")
        yield Excerpt("", id="problem")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Quit", id="cancel", compact=True)
        yield Button("Try again", id="again", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#again").display = False
        self.make()

    def on_key(self, event: events.Key) -> None:
        if self.focused is None and event.key not in self.active_bindings:
            self.unused.append(event)

    def chosen(self, button: str) -> None:
        self.make()

    def action_cancel(self) -> None:
        self.dismiss(False)

    @work(exclusive=True, group="demo", exit_on_error=False, description="making the tiny model")
    async def make(self) -> None:
        """Make the model. On failure, show the last output and offer to try again."""
        self.query_one("#again").display = False
        self.query_one("#problem", Static).update("")
        bar, line = self.query_one(ProgressBar), self.query_one("#progress-line", Static)

        def show(share: float, text: str) -> None:
            bar.update(progress=share)
            line.update(Content.from_markup("[$grpo-muted]$text[/]", text=text))

        show(0.0, "starting grpo-train …")
        try:
            await make_model(self.root, show, self.command)
        except (DemoError, OSError) as error:
            problem = Content.from_markup("[$error]✖ cannot make the tiny model[/]\n$error", error=str(error))
            self.query_one("#problem", Static).update(problem)
            again = self.query_one("#again")
            again.display = True
            again.focus()
            self.unused.clear()
            return
        self.dismiss(True)
