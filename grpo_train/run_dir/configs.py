"""Training configs on disk: which folder holds them, their names and texts. Standard library only.

The app, the agent and ``grpo-train init`` all look here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeAlias

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import utc_from

# values of a run's resolved config, by ``section.key``: a box may have no YAML reader ----------------------
# Read is the block style that the engine writes. What cannot be read is left out, never guessed: texts of several
# lines, lists of objects, flow style other than ``[]`` and ``{}``.

Value: TypeAlias = str | float | bool | None
MAX_KEYS = 400
MAX_TEXT = 120
"""Characters of a value; a longer one is cut."""
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63}):(?: +(.*))?")
_NUMBER = re.compile(r"[-+]?(?:\d+|(?:\d+\.\d*|\.\d+)(?:[eE][-+]\d+)?)")
"""As YAML 1.1 writes numbers: ``1e5`` is a text."""
_WORDS = {"null": None, "~": None, "true": True, "false": False}


def config_values(text: str) -> dict[str, Value]:
    """The scalars of a config and its lists of scalars, which become ``a, b``."""
    found: dict[str, Value] = {}
    lists: dict[str, list[str]] = {}
    path: list[tuple[int, str]] = []
    broken: set[str] = set()
    last = ""
    """The value or list of the last line, which a deeper line continues, and so makes unreadable."""
    deeper_than: int | None = None
    for line in text.splitlines():
        rest = line.lstrip(" ")
        indent = len(line) - len(rest)
        if not rest or rest.startswith("#") or len(found) >= MAX_KEYS:
            continue
        if deeper_than is not None and indent > deeper_than:  # also a line that looks like an item: the text continues
            broken.add(last)
            continue
        if rest.startswith("- ") and path and indent >= path[-1][0]:
            last = ".".join(name for _, name in path)
            lists.setdefault(last, []).append(rest[2:])
            deeper_than = indent
            continue
        if (match := _KEY.fullmatch(rest)) is None:
            continue
        while path and path[-1][0] >= indent:
            path.pop()
        name, value = match[1], match[2]
        if value is None:
            path.append((indent, name))
            deeper_than = None
            continue
        deeper_than, last = indent, ".".join([*(parent for _, parent in path), name])
        readable, scalar = _scalar(value)
        if readable and str(scalar).isprintable():
            found[last] = scalar
    for name, items in lists.items():
        scalars = [_scalar(item) for item in items]
        text = ", ".join(str(scalar) for _, scalar in scalars)[:MAX_TEXT]
        plain = all(readable and not _KEY.fullmatch(item) for (readable, _), item in zip(scalars, items, strict=True))
        if plain and text.isprintable():
            found[name] = text
    return {name: value for name, value in found.items() if name not in broken}


def _scalar(text: str) -> tuple[bool, Value]:
    """Whether a value is read, and the value."""
    if text in _WORDS:
        return True, _WORDS[text]
    if _NUMBER.fullmatch(text):
        number = float(text)
        return abs(number) <= 1e15, int(number) if number.is_integer() and "." not in text else number
    if text in ("[]", "{}"):
        return True, ""
    if text.startswith("'"):
        inner = text[1:-1]
        closed = len(text) >= 2 and text.endswith("'") and "'" not in inner.replace("''", "")
        return closed, inner.replace("''", "'")[:MAX_TEXT]
    if text.startswith('"'):
        try:
            value = json.loads(text)
        except ValueError:
            return False, None
        return isinstance(value, str), value[:MAX_TEXT]
    return text[0] not in "[{|>&*!%@`" and not text.startswith("- "), text[:MAX_TEXT]


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
        except OSError:  # another account's, or removed in the meantime
            continue
        if keys and keys <= SECTIONS:
            return True
    return False
