"""The user's columns.yaml: the columns of the list of runs. No Textual."""

from __future__ import annotations

from pathlib import Path

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import atomic_write
from grpo_tui.model.run_columns import KNOWN
from grpo_tui.user_files import read_user_file, user_file

MOST = 40
_HEADER = """\
# Columns of the list of runs, in order, beside the name. config/columns.example.yaml lists them.
columns:
"""


class ColumnsError(UserError):
    """A columns.yaml that is not a list of names."""

    code = "bad_config"


def columns_path() -> Path:
    """Where the file is."""
    return user_file("columns.yaml")


def read_columns() -> tuple[str, ...]:
    """The user's columns; () without the file. Raises ColumnsError."""
    file = columns_path()
    if (found := read_user_file(file, ColumnsError)) is None:
        return ()
    names = found.get("columns") if isinstance(found, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ColumnsError(f"{file}: expected 'columns:' with a list of names, such as {', '.join(list(KNOWN)[1:4])}")
    if len(set(names)) < len(names) or len(names) > MOST:
        raise ColumnsError(f"{file}: a column is listed twice, or there are more than {MOST}")
    return tuple(name for name in names if name != "name")


def write_columns(columns: tuple[str, ...]) -> None:
    """Keep the user's columns. Raises OSError."""
    import yaml

    file = columns_path()
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(
        file, _HEADER + "".join(f"  - {yaml.safe_dump(name, width=1000).splitlines()[0]}\n" for name in columns)
    )
