"""Where secrets and other variables are kept for every job of this account: ``~/.grpo/.env``. Standard library only.

It is in the home directory because it must be found whatever the working directory and the root of a job are.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def account_file() -> Path:
    """The file of this account, which ``grpo-tui env put`` writes. Raises RuntimeError without a home directory."""
    return Path("~/.grpo/.env").expanduser()


def env_files() -> list[Path]:
    """The files that a command of the engine reads; the first that has a variable wins."""
    files = [Path(".env")]
    with suppress(RuntimeError):
        files.append(account_file())
    return files
