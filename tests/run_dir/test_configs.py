"""Which folder holds the training configs, and reading them."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.run_dir import configs
from grpo_train.run_dir.configs import config_folder, example_configs, list_configs, read_config
from grpo_train.run_dir.errors import UserError
from tests.support.engine import REPOSITORY


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_explicit_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "config", own="task:\n  name: addition\n")
    monkeypatch.chdir(tmp_path)
    assert config_folder(tmp_path) == tmp_path
    with pytest.raises(UserError, match="is not a directory") as caught:
        config_folder(tmp_path / "none")
    assert caught.value.code == "no_config"


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("task:\n  name: addition\n", True),
        ("# comment\nrun: {seed: 1}\nmodel:\n  backbone: tiny\n", True),
        ("model: resnet\ndata: imagenet\n", False),
        ("", False),
        ("- run:\n", False),
    ],
)
def test_local_folder_needs_a_training_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, ours: bool
) -> None:
    folder = write(tmp_path / "config", a="other: 1\n", b=text)
    monkeypatch.chdir(tmp_path)
    assert config_folder() == (folder if ours else REPOSITORY / "config")


def test_installed_copy_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "grpo_train"
    copy = write(package / "_config", demo="run:\n  seed: 1\n")
    write(package.parent / "config", foreign="hosts: []\n")
    monkeypatch.setattr(configs, "__file__", str(package / "run_dir" / "configs.py"))
    monkeypatch.chdir(tmp_path)
    assert config_folder() == example_configs() == copy
    (copy / "demo.yaml").unlink()
    with pytest.raises(UserError, match="no example configs found"):
        config_folder()


def test_listing_skips_other_files(tmp_path: Path) -> None:
    write(tmp_path, b="b: 1\n", boxes="c: 1\n", **{"keymap.example": "d: 1\n", ".hidden": "e: 1\n"})
    write(tmp_path / "a", z="z: 1\n")
    write(tmp_path / "a" / "deeper", no="")
    write(tmp_path / ".git", no="")
    assert [config["name"] for config in list_configs(tmp_path)] == ["b.yaml", "a/z.yaml"]
    assert read_config(tmp_path, "a/z.yaml") == "z: 1\n"
    for name in ("boxes.yaml", "../secret", "/etc/passwd", "a/deeper/no.yaml", ""):
        with pytest.raises(UserError, match="no config named"):
            read_config(tmp_path, name)
