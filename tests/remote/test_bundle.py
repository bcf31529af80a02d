"""The agent's bundle: the same bytes every time, and a bare Python runs it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from remote.bundle import build


def test_the_same_sources_give_the_same_bytes_in_another_process() -> None:
    code = "from remote.bundle import build; print(build().sha256)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == build().sha256 == hashlib.sha256(build().data).hexdigest()


def test_it_is_stored_under_its_hash_and_mended_when_damaged() -> None:
    path = build().path()
    assert path.name == f"{build().sha256}.pyz"
    path.write_bytes(b"damaged")
    assert hashlib.sha256(build().path().read_bytes()).hexdigest() == build().sha256


def test_it_holds_what_the_agent_needs_and_no_tests() -> None:
    with zipfile.ZipFile(build().path()) as archive:
        names = archive.namelist()
        assert archive.read("grpo_train/__init__.py") == b""
    assert names == sorted(names)
    needed = {"__main__.py", "remote/protocol.py", "remote/agent/serve.py", "grpo_train/run_dir/root.py"}
    assert needed | {"libtmux/server.py"} <= set(names)
    unwanted = ("libtmux/test", "libtmux/pytest", "remote/client", "grpo_train/config", "grpo_train/cli")
    assert not [name for name in names if name.startswith(unwanted)]


def test_a_bare_python_without_site_packages_runs_it(tmp_path: Path) -> None:
    """``env -i``, ``-I`` and ``-S``: nothing but the standard library and the bundle, libtmux included."""
    command = ["env", "-i", sys.executable, "-I", "-S", str(build().path())]
    done = subprocess.run([*command, "wrong"], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 2
    assert "usage" in done.stderr
    code = f"import sys; sys.path.insert(0, {str(build().path())!r}); import libtmux.server, remote.agent.operations"
    subprocess.run([*command[:-1], "-c", code], check=True, cwd=tmp_path, timeout=30)
