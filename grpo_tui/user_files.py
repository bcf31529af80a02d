"""The YAML files in the user's configuration directory. No Textual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_train.run_dir.errors import UserError


def user_file(name: str) -> Path:
    """Where a file of the user is."""
    import platformdirs

    return Path(platformdirs.user_config_dir("grpo-tui")) / name


def read_user_file(file: Path, error_type: type[UserError]) -> Any:
    """The content of a file, ``{}`` of an empty one, None without one. Raises ``error_type`` with file and line."""
    if not file.exists():
        return None
    import yaml

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise error_type(f"{file}{line}: invalid YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise error_type(f"{file}: {error}") from error
