"""The agent's bundle: reproducible, and runnable by a bare Python."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from remote.transports import bootstrap
from remote.transports.bootstrap import build


def test_the_bundle_is_reproducible() -> None:
    code = "from remote.transports.bootstrap import build; print(build().sha256)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == build().sha256 == hashlib.sha256(build().data).hexdigest()


def test_a_damaged_copy_is_replaced() -> None:
    path = build().path()
    assert path.name == f"{build().sha256}.pyz"
    path.write_bytes(b"damaged")
    assert hashlib.sha256(build().path().read_bytes()).hexdigest() == build().sha256


def test_it_contains_what_the_agent_needs() -> None:
    with zipfile.ZipFile(build().path()) as archive:
        names = archive.namelist()
        assert archive.read("grpo_train/__init__.py") == b""
    assert names == sorted(names)
    needed = {"__main__.py", "remote/protocol/operations.py", "remote/agent/program.py", "grpo_train/run_dir/root.py"}
    assert needed | {"libtmux/server.py", "remote/base.py"} <= set(names)
    unwanted = ("libtmux/test", "libtmux/pytest", "remote/client", "grpo_train/config", "grpo_train/cli")
    assert not [name for name in names if name.startswith(unwanted)]


def test_a_bare_python_runs_it(tmp_path: Path) -> None:
    """``env -i``, ``-I`` and ``-S``: only the standard library and the bundle, which includes libtmux."""
    command = ["env", "-i", sys.executable, "-I", "-S", str(build().path())]
    done = subprocess.run([*command, "wrong"], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 2
    assert "usage" in done.stderr
    code = f"import sys; sys.path.insert(0, {str(build().path())!r}); import libtmux.server, remote.agent.operations"
    subprocess.run([*command[:-1], "-c", code], check=True, cwd=tmp_path, timeout=30)


def test_a_stored_bundle_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = bootstrap.stored()
    assert first == bootstrap.build().path()
    with monkeypatch.context() as unbuilt:
        unbuilt.setattr(bootstrap, "build", lambda: pytest.fail("built again"))
        assert bootstrap.stored() == first
    first.write_bytes(b"damaged")
    assert bootstrap.stored() == first
    assert first.read_bytes() == bootstrap.build().data
    monkeypatch.setattr(bootstrap, "ENTRY", bootstrap.ENTRY + "# changed\n")
    bootstrap.build.cache_clear()
    try:
        assert bootstrap.stored() != first
    finally:
        monkeypatch.undo()
        bootstrap.build.cache_clear()
