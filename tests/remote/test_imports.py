"""What the link imports on the laptop, and what the agent imports on the box."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REMOTE = Path(__file__).resolve().parents[2] / "remote"
BUNDLED = ("remote.base", "remote.agent", "remote.index", "remote.protocol", "grpo_train.run_dir")
POSIX_ONLY = {"fcntl", "pty", "pwd", "grp", "termios", "tty", "resource", "syslog"}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(REMOTE.parent).with_suffix("").parts)


def loaded_by(*modules: str) -> set[str]:
    code = f"import {', '.join(modules)}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_the_client_loads_nothing_heavy() -> None:
    heavy = {"paramiko", "libtmux", "boto3", "torch", "textual", "pydantic", "yaml", "cryptography", "numpy"}
    assert not loaded_by("remote", "remote.client", "remote.boxes", "remote.transports.local", "remote.events") & heavy


def test_paramiko_is_loaded_only_to_connect() -> None:
    assert "paramiko" not in loaded_by("remote.transports.paramiko", "remote.transports.identities")


@pytest.mark.parametrize("path", sorted(REMOTE.rglob("*.py")), ids=lambda path: path.name)
def test_importing_needs_no_posix_module(path: Path) -> None:
    """The laptop may run Windows; functions that run on the box may import POSIX modules."""
    top_level = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in top_level if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in top_level if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & POSIX_ONLY


@pytest.mark.parametrize(
    "path",
    sorted(path for path in REMOTE.rglob("*.py") if _module(path).startswith(BUNDLED)),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_the_agent_imports_only_its_bundle(path: Path) -> None:
    allowed = set(sys.stdlib_module_names) | {"remote", "grpo_train", "libtmux"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.partition(".")[0] in allowed, name
            if name.startswith(("remote.", "grpo_train.")):
                assert name.startswith(BUNDLED), name
