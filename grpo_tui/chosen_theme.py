"""The color theme that the user chose, kept on this machine between starts. No Textual."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from grpo_train.run_dir.files import atomic_write


def _file() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("grpo-tui")) / "theme"


def chosen_theme() -> str:
    """Name of the theme; "" without a choice."""
    with suppress(OSError, UnicodeDecodeError):
        return _file().read_text(encoding="utf-8").strip()
    return ""


def remember_theme(name: str) -> None:
    """Keep a choice. A disk that takes no file does not prevent it for now."""
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(_file(), name + "\n")
