"""The YAML files in the user's configuration directory. No Textual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_train.config.yaml_text import InvalidYaml, load_yaml
from grpo_train.run_dir.errors import UserError


def user_file(name: str) -> Path:
    """Where a file of the user is."""
    import platformdirs

    return Path(platformdirs.user_config_dir("grpo-tui")) / name


def read_user_file(file: Path, error_type: type[UserError]) -> Any:
    """The content of a file, ``{}`` of an empty one, None without one. Raises ``error_type`` with file and line."""
    if not file.exists():
        return None
    try:
        return load_yaml(file.read_text(encoding="utf-8")) or {}
    except InvalidYaml as error:
        raise error_type(error.at(str(file))) from error
    except (OSError, UnicodeDecodeError) as error:
        raise error_type(f"{file}: cannot read: {error}") from error
