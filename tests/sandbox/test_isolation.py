"""Probing the isolation layers: levels, fallbacks and errors."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_train.sandbox import (
    SandboxError,
    SandboxTooWeak,
    allow_weak,
    isolation,
    landlock,
    probe,
    run_program,
    run_tests,
    seccomp,
    workspace,
)
from grpo_train.sandbox.interpreter import interpreter


@pytest.fixture
def probing(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Reset the probe, so that a test can change what this machine allows."""
    monkeypatch.delenv(probe.ALLOW_WEAK_VARIABLE, raising=False)
    monkeypatch.setattr(probe, "_found", None)
    monkeypatch.setattr(workspace, "_workspace", None)
    yield monkeypatch
    allow_weak(False)
    if workspace._workspace is not None:
        workspace._workspace.close()


def test_this_machine_is_strong() -> None:
    here = isolation()
    assert here.level in ("full", "strong"), here.describe()
    assert run_program("pass").isolation == here.level


def test_strong_without_namespaces(probing: pytest.MonkeyPatch) -> None:
    probing.setattr(probe, "NAMESPACES", 1 << 30 | 1)  # an invalid flag fails like a kernel without namespaces
    here = isolation()
    assert here.level == "strong"
    assert "namespaces" in here.missing
    assert "unshare" in here.describe() or "Invalid" in here.describe()
    assert run_tests("def f(x): return x", ["assert f(1) == 1"]).isolation == "strong"


def test_medium_must_be_allowed(probing: pytest.MonkeyPatch) -> None:
    probing.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(SandboxTooWeak) as refused:
        run_program("print(1)")
    for part in ("medium", "no landlock", "sandbox.allow_weak", probe.ALLOW_WEAK_VARIABLE):
        assert part in str(refused.value)
    allow_weak(True)
    assert run_program("print(1)").isolation == "medium"
    allow_weak(False)
    probing.setenv(probe.ALLOW_WEAK_VARIABLE, "1")
    assert run_program("print(1)").isolation == "medium"


def test_weak_without_landlock_and_seccomp(probing: pytest.MonkeyPatch) -> None:
    probing.setattr(landlock, "abi", lambda: 0)
    allow_everything = seccomp.Filter(b"\x06\0\0\0\0\0\xff\x7f", ())
    probing.setattr(seccomp, "build", lambda machine: allow_everything)
    with pytest.raises(SandboxTooWeak, match="weak"):
        isolation()
    allow_weak(True)
    here = isolation()
    assert (here.level, here.seccomp) == ("weak", False)
    assert "a socket or a signal was allowed" in here.missing["seccomp"]
    result = run_program("import os\nif os.fork() == 0:\n    import time; time.sleep(1000)\nprint(1)", cpu_seconds=1)
    assert (result.status, result.stdout) == ("ok", "1\n")  # the child process is killed, too


def test_an_ineffective_layer_is_detected(probing: pytest.MonkeyPatch) -> None:
    everything = landlock.create_ruleset
    probing.setattr(landlock, "create_ruleset", lambda read, listed, write, abi: everything(("/",), "/", "/", abi))
    with pytest.raises(SandboxTooWeak, match="a file outside was opened"):
        isolation()


def test_root_without_capabilities_keeps_its_uid(probing: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    probing.setattr(probe.os, "geteuid", lambda: 0)
    probing.setattr(probe, "_closed_to_others", lambda path: None)
    real = probe.run_isolated
    probing.setattr(probe, "run_isolated", lambda tried, *a, **k: refused() if tried.uid else real(tried, *a, **k))
    here = isolation()
    assert here.uid is None
    assert "separate uid" in here.missing


def test_unsupported_machines_are_errors(probing: pytest.MonkeyPatch) -> None:
    probing.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="riscv64"):
        isolation()


def test_a_later_failure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(isolation(), namespaces=1 << 30 | 1, namespaces_as_root=False)
    monkeypatch.setattr(probe, "_found", broken)
    with pytest.raises(SandboxError, match="worked earlier"):
        run_program("print(1)")


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_older_landlock_abis(version: int, tmp_path: Path) -> None:
    if landlock.abi() < version:
        pytest.skip("this kernel has an older ABI")
    os.close(landlock.create_ruleset(interpreter().readable, interpreter().stdlib, str(tmp_path), version))
