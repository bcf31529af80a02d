"""The history of runs on this machine: written by the app in the background, read by ``grpo-tui history`` and ``cost``.

No Textual. One file for all boxes; it survives them. What a record is: :mod:`grpo_train.history`.
"""

from __future__ import annotations

from pathlib import Path

FILE = "history.sqlite"


def history_file() -> Path:
    """The file of records, in the user's data directory."""
    import platformdirs

    return Path(platformdirs.user_data_dir("grpo-tui")) / FILE
