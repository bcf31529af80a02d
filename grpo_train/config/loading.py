"""The configuration of a run, read from YAML and checked against :mod:`grpo_train.config.schema`.

``load_config`` turns a YAML text (and ``section.key=value`` overrides) into a checked :class:`Config`; every problem
is reported with the file, the line, the key and, where a name was misspelled, the nearest known one. Torch-free.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from grpo_train.config.schema import Config
from grpo_train.run_dir.errors import UserError


class ConfigError(UserError):
    """A configuration that cannot be used; the message has one line a problem, each with its way out."""

    code = "bad_config"


def load_config(text: str, overrides: list[str] | tuple[str, ...] = (), source: str = "the config") -> Config:
    """Check a YAML text and ``section.key=value`` overrides (values are YAML too).

    Raises ConfigError with one line a problem: source, line, key, what is wrong, the way out.
    """
    try:
        document = yaml.safe_load(text)
        lines = _lines_of(text, source)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark else source
        raise ConfigError(f"{where}: this is no YAML: {getattr(error, 'problem', None) or error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected sections (run:, model:, rollout:, …), found a {type(document).__name__}")
    document = {section: {} if keys is None else keys for section, keys in document.items()}  # all keys commented out
    from_overrides: set[tuple[str, ...]] = set()
    for override in overrides:
        from_overrides.add(_apply(document, override))
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(problem, source, lines, from_overrides) for problem in error.errors())
        ) from error


def with_changes(config: Config, **sections: dict[str, Any]) -> Config:
    """The configuration with some keys changed, checked again. Raises ConfigError."""
    document = config.model_dump()
    for section, changes in sections.items():
        document[section].update(changes)
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(problem, "the arguments", {}, set()) for problem in error.errors())
        ) from None


def read_config_text(path: Path) -> str:
    """The text of a config file. Raises ConfigError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"it is no UTF-8 text ({error.reason} at byte {error.start})"
    raise ConfigError(f"cannot read the config {path}: {reason} (give --cfg a YAML file; see config/ for examples)")


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply(document: dict[str, Any], override: str) -> tuple[str, ...]:
    key, equals, value = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and name):
        raise ConfigError(f"--set {override}: write section.key=value, e.g. run.total_steps=20")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: '{value}' is no YAML value") from error
    if isinstance(parsed, str) and _is_number(parsed):
        parsed = float(parsed)  # YAML reads 1e-4 as a string
    inner = document.setdefault(section, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"--set {override}: '{section}' is no section")
    inner[name] = parsed
    return (section, name)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines_of(text: str, source: str) -> dict[tuple[str, ...], int]:
    """Line number of every key path. Raises ConfigError for a key that stands twice."""
    lines: dict[tuple[str, ...], int] = {}

    def walk(node: yaml.Node | None, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*path, str(key.value))
                if here in lines:
                    raise ConfigError(
                        f"{source}, line {key.start_mark.line + 1}: '{'.'.join(here)}' is there already, "
                        f"in line {lines[here]}: keep one"
                    )
                lines[here] = key.start_mark.line + 1
                walk(value, here)

    walk(yaml.compose(text), ())
    return lines


def _explain(problem: Any, source: str, lines: dict[tuple[str, ...], int], from_overrides: set[tuple[str, ...]]) -> str:
    path = tuple(str(part) for part in problem["loc"])[:2]
    key = ".".join(path)
    if path in from_overrides:
        where = f"--set {key}"
    elif path in lines:
        where = f"{source}, line {lines[path]}"
    else:
        where = source
    if problem["type"] == "extra_forbidden":
        known = _known_keys(path[0]) if len(path) > 1 else list(Config.model_fields)
        everywhere = [f"{s}.{k}" for s in Config.model_fields for k in _known_keys(s)]
        same_name = [full for full in everywhere if full.partition(".")[2] == path[-1]]
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        if len(path) > 1 and near:
            hint = f"did you mean {path[0]}.{near[0]}?"
        elif same_name:
            hint = f"did you mean {same_name[0]}?"
        elif near:
            hint = f"did you mean {near[0]}?"
        else:
            hint = f"known here: {', '.join(known)}"
        return f"{where}: unknown key '{key}'; {hint}"
    if problem["type"] == "value_error":
        return _where_said(str(problem["ctx"]["error"]), where, source, lines, from_overrides)
    got = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
    no_pairs = problem["type"] in ("dict_type", "model_type", "model_attributes_type")  # Python's word is not a user's
    what = "input should be keys with values, NAME: VALUE" if no_pairs else problem["msg"]
    return f"{where}: {key}: {what[0].lower()}{what[1:]}{got}"


def _where_said(
    message: str, where: str, source: str, lines: dict[tuple[str, ...], int], from_overrides: set[tuple[str, ...]]
) -> str:
    """A problem between keys, with the place of one that it names: an override, else the first that has a line."""
    named = [tuple(found) for found in re.findall(r"\b([a-z]+)\.([a-z_]+)\b", message)]
    for path in named:
        if path in from_overrides:
            return f"--set {'.'.join(path)}: {message}"
    for path in named:
        if path in lines:
            return f"{source}, line {lines[path]}: {message}"
    return f"{where}: {message}"


def _known_keys(section: str) -> list[str]:
    field = Config.model_fields.get(section)
    model = field.annotation if field else None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return [name for part in get_args(model) for name in getattr(part, "model_fields", ())]
