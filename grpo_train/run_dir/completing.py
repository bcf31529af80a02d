"""Names that a shell completes: what files of this machine say, read and never written. Standard library only.

Both programs answer a shell through argcomplete, in :mod:`grpo_train.cli.completion` and `grpo_tui.shell.completion`.
"""

from __future__ import annotations

import os
from pathlib import Path

from grpo_train.run_dir.root import is_run

CONFIGS = (".yaml", ".yml")


def run_names(root: Path) -> list[str]:
    """Names of the runs of a root, newest first where names begin with a date. Raises OSError without one."""
    folder = root / "training_runs"
    return sorted((name for name in os.listdir(folder) if name[0] != "." and is_run(folder / name)), reverse=True)


def paths(prefix: str, suffixes: tuple[str, ...] = ()) -> list[str]:
    """Folders, ending in ``/``, and files that a path may become, with ``~`` as it was typed. Raises OSError."""
    folder, _, beginning = prefix.rpartition("/")
    before = f"{folder}/" if "/" in prefix else ""
    found = []
    with os.scandir(os.path.expanduser(before) or ".") as entries:
        for entry in entries:
            if entry.name.startswith(beginning) and (beginning or entry.name[0] != "."):
                if entry.is_dir():
                    found.append(f"{before}{entry.name}/")
                elif not suffixes or entry.name.endswith(suffixes):
                    found.append(before + entry.name)
    return sorted(found)
