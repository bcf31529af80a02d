"""Messages name a command that adds an extra to this installation, from where it came."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_train.run_dir import installation
from grpo_train.run_dir.installation import EXTRAS, install_command
from tests.support.engine import REPOSITORY

GIT = {"url": "https://example.org/g", "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "c0ffee"}}
FOLDER = {"url": "file:///src/my%20g", "dir_info": {}}
EDITABLE = {"url": "file:///src/my%20g", "dir_info": {"editable": True}}
UV, PIPX = "uv tool install --force ", "pipx install --force "


@pytest.mark.parametrize(
    ("source", "marker", "extra", "command"),
    [
        (GIT, "uv-receipt.toml", "train", f"{UV}'grpo-tui[train] @ git+https://example.org/g@c0ffee'"),
        (GIT, "uv-receipt.toml", "math", f"{UV}'grpo-tui[math,train] @ git+https://example.org/g@c0ffee'"),
        (GIT, "pipx_metadata.json", "train", f"{PIPX}'grpo-tui[train] @ git+https://example.org/g@c0ffee'"),
        (GIT, "", "math", "PYTHON -m pip install 'grpo-tui[math] @ git+https://example.org/g@c0ffee'"),
        (FOLDER, "uv-receipt.toml", "train", f"{UV}'grpo-tui[train] @ file:///src/my%20g'"),
        (FOLDER, "", "wandb", "PYTHON -m pip install 'grpo-tui[wandb] @ file:///src/my%20g'"),
        (EDITABLE, "uv-receipt.toml", "train", f"{UV}-e '/src/my g[train]'"),
        (EDITABLE, "", "gym", "PYTHON -m pip install -e '/src/my g[gym]'"),
        ({}, "", "train", "PYTHON -m pip install 'grpo-tui[train]'"),
        (None, "", "train", "PYTHON -m pip install 'grpo-tui[train]'"),
    ],
)
def test_the_command_fits_the_installation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, Any] | None,
    marker: str,
    extra: str,
    command: str,
) -> None:
    """The engine is there where another extra is asked for."""
    there = {"pip", *(["torch"] if extra != "train" else [])}
    found(monkeypatch, tmp_path, source, there)
    if marker:
        (tmp_path / marker).touch()
    assert install_command(extra) == command.replace("PYTHON", "'/my env/bin/python'")


def test_uvx_starts_the_program_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environments are in uv's cache, and nothing is added to them."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/grpo-train"])
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found(monkeypatch, tmp_path / "archive-v0" / "AbC", GIT, {"math_verify"})
    source = "'grpo-tui[math,train] @ git+https://example.org/g@c0ffee'"
    assert install_command("train") == f"uvx --python {version} --from {source} grpo-train"
    found(monkeypatch, tmp_path / "archive-v0" / "AbC", {}, set())
    assert install_command("train") == f"uvx --python {version} --from 'grpo-tui[train]' grpo-train"


def found(monkeypatch: pytest.MonkeyPatch, prefix: Path, source: dict[str, Any] | None, modules: set[str]) -> None:
    """An installation in ``prefix`` with this direct_url.json; none at all where that is None."""

    def distribution(name: str) -> SimpleNamespace:
        if source is None:
            raise metadata.PackageNotFoundError(name)
        return SimpleNamespace(read_text=lambda name: json.dumps(source) if source else None)

    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(installation, "find_spec", lambda name: name if name in modules else None)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")


def test_the_environment_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``make setup-box`` chooses the torch build; uv makes environments without pip."""
    source = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    found(monkeypatch, tmp_path / ".venv", source, set())
    assert install_command("train") == f"make -C {tmp_path} setup-box"
    assert install_command("math") == f"uv pip install --python '/my env/bin/python' -e '{tmp_path}[math]'"
    found(monkeypatch, tmp_path / "another", source, set())
    assert install_command("train").endswith(f" -e '{tmp_path}[train]'")


def test_extras_are_those_of_the_project() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    listed = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert sorted(EXTRAS) == sorted(re.findall(r"^(\w+) = \[", listed, re.MULTILINE))


def test_no_message_names_a_distribution_of_an_index() -> None:
    """grpo-tui is installed from a checkout, a wheel or git; only one that came from an index names none."""
    files = [file for room in ("grpo_train", "grpo_tui", "remote", "docs") for file in (REPOSITORY / room).rglob("*.*")]
    texts = [file for file in files if file.suffix in (".py", ".md")] + [REPOSITORY / "README.md"]
    assert [str(file) for file in texts if re.search(r"grpo.tui\[[a-z]", file.read_text(encoding="utf-8"))] == []
