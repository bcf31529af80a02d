"""The startup budget: what may be loaded when, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "boto3", "paramiko", "numpy", "libtmux", "pydantic")


def loaded_after(code: str) -> set[str]:
    """Top-level modules of a fresh interpreter after running ``code``."""
    script = f"import sys\n{code}\nprint('LOADED', *sorted(n.partition('.')[0] for n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=REPO, check=True
    )
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_package_import_loads_nothing() -> None:
    assert not {*HEAVY, "textual", "rich", "yaml"} & loaded_after("import grpo_tui")


def test_model_and_actions_load_no_textual() -> None:
    code = (
        "import grpo_tui.box.store, grpo_tui.box.link, grpo_tui.actions, "
        "grpo_tui.background, grpo_tui.box.needs, grpo_tui.files, grpo_tui.kit.attach"
    )
    assert not {*HEAVY, "textual", "rich", "yaml"} & loaded_after(code)


def test_help_loads_no_textual() -> None:
    code = "from grpo_tui.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not {*HEAVY, "textual", "rich", "asyncio", "remote"} & loaded_after(code)


def test_first_frame_loads_nothing_heavy() -> None:
    code = """
import asyncio, threading
from grpo_tui.app import GrpoApp
from grpo_tui.files import Options
from remote.boxes import Box
at_first_frame = None
proceed = threading.Event()
def make(box, on_event):
    global at_first_frame
    at_first_frame = set(sys.modules)
    proceed.wait(120)
    raise RuntimeError("no client")
async def first_frame():
    app = GrpoApp(Options(Box("x", host="y")), make_client=make)
    async with app.run_test(size=(120, 40)) as pilot:
        while at_first_frame is None:
            await pilot.pause(0.01)
        while not any("connecting to x" in strip.text for strip in app.screen._compositor.render_strips()):
            await pilot.pause(0.01)
        proceed.set()
asyncio.run(first_frame())
for name in set(sys.modules) - at_first_frame:
    del sys.modules[name]
"""
    assert not set(HEAVY) & loaded_after(code)


def test_all_modules_import_on_windows() -> None:
    code = f"""
import importlib, pathlib
for name in ("fcntl", "pty", "pwd", "grp", "termios", "resource"):
    sys.modules[name] = None
for path in sorted(pathlib.Path({str(REPO / "grpo_tui")!r}).rglob("*.py")):
    module = ".".join(path.relative_to({str(REPO)!r}).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(module)
"""
    # Textual's Unix driver needs termios, but only when an app runs.
    assert "grpo_tui" in loaded_after(code)
