"""A home directory of its own for each test of backups: destinations, credentials and records lie there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import micro

make_root, tiny_model = micro.make_root, micro.tiny_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / ".local/state"))
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION", "CA_BUNDLE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return folder
