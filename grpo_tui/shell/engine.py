"""``--demo`` without the engine: ask once, add the engine, and start the program again."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.installation import from_uvx, install_command, uvx_arguments
from grpo_tui.dialogs.demo import engine_is_missing, machine_problem

ON_MACOS, FOR_CPU, WITH_CUDA = "250 MB", "400 MB", "3.2 GB"
"""Download of the extra with PyPI's torch for macOS, PyTorch's for CPUs on Linux, and PyPI's for Linux, which brings
CUDA. Sums of the sizes of the wheels that uv 0.13 chose in November 2026 for Python 3.12 (``uv pip compile --format
pylock.toml --python-platform …``)."""
BACKEND = "UV_TORCH_BACKEND"
"""uv's variable for which build of torch it takes; ``auto`` is the one that fits this machine's driver, else CPUs."""
PROBE_S = 20.0


def offer_engine(words: Sequence[str]) -> None:
    """Return where the engine is there, this machine cannot run the demo, or nobody can be asked.

    Otherwise ask. After a yes this process becomes the program with the engine; after a no raises UserError. uvx keeps
    what it downloaded: nothing is asked where its cache has the engine.
    """
    if not engine_is_missing() or machine_problem() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    uv = _uv() if from_uvx() else ""
    start = [*uvx_arguments("train"), "grpo-tui"] if uv else []
    if uv and (cached := _cached_start(uv, start, words)):
        print("grpo-tui: starting again with the engine, which uvx has in its cache", flush=True)
        os.execve(uv, *cached)
    variables, size = _torch_build()
    command = shlex.join(["uvx", *start, *words]) if uv else install_command("train")
    shown = " ".join([*(f"{name}={value}" for name, value in variables.items()), command])
    print(
        "The demo trains a tiny model on this machine. This needs the training engine (PyTorch and its\n"
        f"libraries), which is not installed here. This command downloads it, about {size}, once:\n\n  {shown}\n"
    )
    if not _confirmed("Download it and start the demo? [y/N] "):
        raise UserError(f"nothing was downloaded; to do it later, run: {shown}", code="no_engine")
    os.environ.update(variables)
    if uv:
        os.execv(uv, [uv, "tool", "run", *start, *words])
    _install(command)
    os.execv(sys.executable, [sys.executable, sys.argv[0], *words])


def _cached_start(uv: str, start: list[str], words: Sequence[str]) -> tuple[list[str], dict[str, str]] | None:
    """Arguments and environment that start the program from uv's cache; None where the cache lacks the engine."""
    for variables in ({}, {BACKEND: "auto"}) if BACKEND not in os.environ else ({},):
        environment: dict[str, str] = {**os.environ, **variables}
        command = [uv, "tool", "run", "--offline", *start]
        if subprocess.run([*command, "--version"], capture_output=True, env=environment).returncode == 0:
            return [*command, *words], environment
    return None


def _confirmed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def _install(command: str) -> None:
    """Run the command that installs the engine into this installation. Raises UserError."""
    try:
        code = subprocess.run(shlex.split(command)).returncode
    except OSError as error:
        raise UserError(f"cannot run {command}: {error.strerror or error}", code="no_engine") from error
    if code:
        raise UserError(
            f"the engine was not installed: this command failed with code {code}: {command}", code="no_engine"
        )


def _uv() -> str:
    """The uv that started this program, or the one on PATH; "" without one."""
    started = os.environ.get("UV", "")
    return started if Path(started).is_file() else shutil.which("uv") or ""


def _torch_build() -> tuple[dict[str, str], str]:
    """Variables that have uv take the build of torch for this machine, and how much is then downloaded.

    PyPI's build for Linux brings CUDA, 3 GB that a machine without an NVIDIA GPU has no use for. PyTorch's own index
    has the others. Where it is not reachable, the default is PyPI's.
    """
    if sys.platform != "linux":
        return {}, ON_MACOS
    uses_uv = from_uvx() or install_command("train").startswith("uv ")
    if BACKEND not in os.environ and uses_uv and _index_is_reachable(_uv()):
        return {BACKEND: "auto"}, WITH_CUDA if Path("/dev/nvidia0").exists() else FOR_CPU
    return {}, FOR_CPU if os.environ.get(BACKEND) == "cpu" else WITH_CUDA


def _index_is_reachable(uv: str) -> bool:
    """Whether uv knows the builds of torch, and can choose one now."""
    quick = {**os.environ, "UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "5"}
    with tempfile.TemporaryDirectory() as folder:
        choice = ["--no-config", "--no-deps", "--torch-backend", "auto", "--python", sys.executable, "--target", folder]
        try:
            known = subprocess.run([uv, "tool", "run", "--help"], capture_output=True, text=True, timeout=PROBE_S)
            if "--torch-backend" not in known.stdout:
                return False
            command = [uv, "pip", "install", "--dry-run", *choice, "torch"]
            return subprocess.run(command, capture_output=True, env=quick, timeout=PROBE_S).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False
