"""Training configs on disk: which folder holds them, their names and texts. Standard library only.

The app, the agent and ``grpo-train init`` all look here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import utc_from

SECTIONS = frozenset(
    {
        "run",
        "model",
        "rollout",
        "algorithm",
        "optimizer",
        "train",
        "task",
        "curriculum",
        "sandbox",
        "eval",
        "tracking",
        "notify",
        "workflow",
        "budget",
        "backup",
    }
)
"""Top-level keys of a training config: the fields of :class:`grpo_train.config.schema.Config`."""
MAX_CONFIG_BYTES = 1 << 20
_OTHER_FILES = ("alarms", "backup.", "boxes", "columns", "keymap", ".")
"""Files of a config folder that do not configure a run, by how their names start."""
_TOP_LEVEL_KEY = re.compile(r"^([A-Za-z_][\w-]*)[ \t]*:", re.MULTILINE)


def config_folder(explicit: str | Path | None = None) -> Path:
    """Folder with the training configs.

    Looked up in this order: ``explicit``, ``./config`` if it holds a training config, the :func:`example_configs`.
    Raises UserError (``no_config``).
    """
    if explicit is None:
        local = Path.cwd() / "config"
        return local if _holds_training_config(local) else example_configs()
    folder = Path(explicit).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a directory", code="no_config")
    return folder


def example_configs() -> Path:
    """``config/`` of the checkout beside this package, else the copy inside the installed package.

    Raises UserError (``no_config``).
    """
    package = Path(__file__).resolve().parent.parent
    candidates = (package.parent / "config", package / "_config")
    for folder in candidates:
        if _holds_training_config(folder):
            return folder
    raise UserError(f"no example configs found (searched {', '.join(map(str, candidates))})", code="no_config")


def list_configs(folder: Path) -> list[dict[str, Any]]:
    """``{"name", "size", "modified"}`` of each config in a folder, then of those in its subfolders."""
    found = []
    for path in [*sorted(folder.glob("*.y*ml")), *sorted(folder.glob("*/*.y*ml"))]:
        name = path.relative_to(folder)
        is_config = path.suffix in (".yaml", ".yml") and not name.name.startswith(_OTHER_FILES)
        if is_config and not name.parts[0].startswith(".") and path.is_file():
            facts = path.stat()
            found.append({"name": name.as_posix(), "size": facts.st_size, "modified": utc_from(facts.st_mtime)})
    return found


def read_config(folder: Path, name: str) -> str:
    """Text of a config that :func:`list_configs` lists. Raises UserError (``no_config``) and OSError."""
    sizes = {config["name"]: config["size"] for config in list_configs(folder)}
    if name not in sizes:
        raise UserError(f"no config named '{name}' in {folder}", code="no_config")
    if sizes[name] > MAX_CONFIG_BYTES:
        raise UserError(f"{folder / name} is larger than {MAX_CONFIG_BYTES} bytes", code="no_config")
    return (folder / name).read_text(encoding="utf-8", errors="replace")


def _holds_training_config(folder: Path) -> bool:
    """Whether a folder has a YAML file whose top-level keys are all sections of a training config."""
    for config in list_configs(folder):
        if config["size"] > MAX_CONFIG_BYTES:
            continue
        try:
            keys = set(_TOP_LEVEL_KEY.findall((folder / config["name"]).read_text(encoding="utf-8", errors="replace")))
        except OSError:
            continue
        if keys and keys <= SECTIONS:
            return True
    return False
