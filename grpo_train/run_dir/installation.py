"""Commands that add packages to this installation. Standard library only."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EXTRAS = {"gym": "reasoning_gym", "math": "math_verify", "mcp": "mcp", "train": "torch", "wandb": "wandb"}
"""The extras of pyproject.toml, and a module that is there where one is installed."""


def install_command(extra: str) -> str:
    """The command that adds an extra of grpo-tui, for the program and the place that it was installed with and from.

    An editable installation stays one, and one from git stays at its commit. uv and pipx replace the environment of
    a tool, so their command names the extras that are there, too. uvx keeps none: its command starts the program.
    """
    prefix, names = Path(sys.prefix), extra
    checkout, requirement = _source()
    if from_uvx():
        return shlex.join(["uvx", *uvx_arguments(extra), _program()])
    if extra == "train" and checkout and prefix.resolve() == (checkout / ".venv").resolve():
        return f"make -C {shlex.quote(str(checkout))} setup-box"
    tools = {"uv-receipt.toml": "uv tool install --force", "pipx_metadata.json": "pipx install --force"}
    tool = next((command for marker, command in tools.items() if (prefix / marker).exists()), "")
    if tool:
        names = _with_present(extra)
    editable = "-e " if checkout else ""
    return f"{tool or pip_install()} {editable}{shlex.quote(requirement.format(f'[{names}]'))}"


def from_uvx() -> bool:
    """Whether uvx has started this program: its environments are in uv's cache, and nothing is ever added to one."""
    return Path(sys.prefix).parent.name.startswith(("archive-v", "environments-v"))


def uvx_arguments(extra: str) -> list[str]:
    """What ``uvx`` takes before the program to start it with an extra beside those that are there, on this Python."""
    _, requirement = _source()
    version = "{}.{}".format(*sys.version_info)
    return ["--python", version, "--from", requirement.format(f"[{_with_present(extra)}]")]


def _with_present(extra: str) -> str:
    """An extra and those that are there, separated by commas."""
    return ",".join(name for name, module in EXTRAS.items() if name == extra or find_spec(module))


def _program() -> str:
    """The program that runs: ``grpo-tui`` or ``grpo-train``."""
    name = Path(sys.argv[0]).name
    return name if name == "grpo-train" else "grpo-tui"


def pip_install() -> str:
    """``pip install`` for this environment; uv's in one without pip, as uv makes them."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _source() -> tuple[Path | None, str]:
    """The checkout of an editable installation, and the requirement with ``{}`` for the extras (PEP 610)."""
    # Imported for a message only: they take longer than all else that a command imports.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    source: dict[str, Any] = {}
    with suppress(PackageNotFoundError, ValueError):  # a checkout that is not installed
        source = json.loads(distribution("grpo-tui").read_text("direct_url.json") or "{}")
    url = source.get("url", "").replace("{", "{{").replace("}", "}}")
    if source.get("dir_info", {}).get("editable"):
        checkout = Path(url2pathname(urlsplit(url).path))
        return checkout, f"{checkout}{{}}"
    if not url:
        return None, "grpo-tui{}"
    git = source.get("vcs_info", {})
    revision = git.get("commit_id") or git.get("requested_revision")
    return None, f"grpo-tui{{}} @ {git['vcs'] + '+' if git else ''}{url}{'@' + revision if revision else ''}"
