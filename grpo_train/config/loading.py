"""Loading configs: YAML text and overrides, validated against :mod:`grpo_train.config.schema`. Torch-free.

Errors name the file, the line, the key and, for a misspelled name, the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from grpo_train.config.schema import Config
from grpo_train.config.yaml_text import InvalidYaml, compose_yaml, line_of, load_yaml, value_of
from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.errors import UserError, did_you_mean, nearest
from grpo_train.run_dir.files import number_in

KeyPath = tuple[str, ...]
_PART = re.compile(r"task\[(\d+)\]")
"""The section of an override of a mixture's part."""


class ConfigError(UserError):
    """An invalid config; the message has one line per problem."""

    code = "bad_config"


def load_config(text: str, overrides: list[str] | tuple[str, ...] = (), source: str = "config") -> Config:
    """Load a YAML text with ``section.key=value`` overrides, whose values are YAML, too.

    ``source`` names the text in errors. Raises ConfigError, with code ``secret`` for a value that must not be stored.
    """
    refuse_secrets(text, overrides, source)
    try:
        top = compose_yaml(text)
        document, lines = None if top is None else value_of(top), _lines_of(top)
    except InvalidYaml as error:
        where = f"{source}, line {error.line}" if error.line else source
        raise ConfigError(f"{where}: {error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected sections (run:, model:, rollout:, …), got a {type(document).__name__}")
    document = {section: {} if keys is None else keys for section, keys in document.items()}  # every key commented out
    if document.get("task") == []:
        raise ConfigError(f"{source}: task: the list is empty; name a task, as in [{{name: gsm8k}}]")
    if isinstance(document.get("task"), list):  # a mixture
        document["task"] = {"parts": document["task"]}
        lines = {("task", "parts", *path[1:]) if path[:1] == ("task",) and path[1:] else path: line
                 for path, line in lines.items()}  # fmt: skip
    overridden = [_apply(document, override) for override in overrides]
    return validate(document, source, lines, overridden)


def with_changes(config: Config, **sections: dict[str, Any]) -> Config:
    """Copy of a config with some keys changed, validated again. Raises ConfigError."""
    document = config.model_dump()
    for section, changes in sections.items():
        document[section].update(changes)
    return validate(document, "the arguments", {})


def changed_keys(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Keys with different values in two configs: ``section.key`` to (before, after)."""
    old, new = flat_keys(before.model_dump(mode="json")), flat_keys(after.model_dump(mode="json"))
    return {key: (old.get(key), value) for key, value in new.items() if old.get(key) != value}


def flat_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dumped config by ``section.key``; those of a mixture's parts by ``task[1].key``."""
    flat: dict[str, Any] = {}
    for section, keys in document.items():
        for key, value in keys.items():
            if (section, key) == ("task", "parts"):
                flat |= {
                    f"task[{index}].{name}": each for index, part in enumerate(value) for name, each in part.items()
                }
            else:
                flat[f"{section}.{key}"] = value
    return flat


def read_config_text(path: Path) -> str:
    """Text of a config file. Raises ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text ({error.reason} at byte {error.start})"
    raise ConfigError(f"cannot read the config {path}: {reason} (grpo-train init writes example configs)")


def dump_config(config: Config) -> str:
    """A config as YAML, with every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def refuse_secrets(text: str, overrides: list[str] | tuple[str, ...], source: str) -> None:
    """Raise ConfigError for the first secret. This comes before any other check, whose message may quote a value."""
    for override in overrides:
        if secret := find_secret(override):
            raise ConfigError(secret.explain("--set"), code="secret")
    if secret := find_secret(text):
        raise ConfigError(secret.explain(f"{source}, line {secret.line}"), code="secret")


def _apply(document: dict[str, Any], override: str) -> KeyPath:
    """Set the key of a ``section.key=value`` override; returns its path."""
    key, equals, value = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and name):
        raise ConfigError(f"--set {override}: expected section.key=value, e.g. run.total_steps=20")
    try:
        parsed = load_yaml(value)
    except InvalidYaml as error:
        raise ConfigError(f"--set {override}: invalid YAML value '{value}'") from error
    if isinstance(parsed, str) and (number := number_in(parsed)) is not None:
        parsed = number  # YAML reads 1e-4 as a string
    inner = document.setdefault("task" if _PART.fullmatch(section) else section, {})
    if isinstance(inner, dict) and (_PART.fullmatch(section) or (section == "task" and inner.get("parts"))):
        index = _part_index(inner.get("parts"), section, override)
        inner["parts"][index][name] = parsed
        return ("task", "parts", str(index), name)
    if not isinstance(inner, dict):
        raise ConfigError(f"--set {override}: '{section}' is not a section")
    inner[name] = parsed
    return (section, name)


def _part_index(parts: Any, section: str, override: str) -> int:
    """The place in the list of ``task[1]``. Raises ConfigError."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ConfigError(f"--set {override}: task is not a list of tasks; use task.KEY=VALUE")
    found = _PART.fullmatch(section)
    if found is None or int(found[1]) >= len(parts):
        names = ", ".join(f"task[{index}] {part.get('label') or part.get('name')}" for index, part in enumerate(parts))
        raise ConfigError(f"--set {override}: task is a list of {len(parts)}: name one of {names}")
    return int(found[1])


def _lines_of(top: yaml.Node | None) -> dict[KeyPath, int]:
    """Line number of every key path."""
    lines: dict[KeyPath, int] = {}

    def walk(node: yaml.Node | None, path: KeyPath) -> None:
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                here = (*path, str(index))
                lines[here] = line_of(item)
                walk(item, here)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*path, str(key.value))
                lines[here] = line_of(key)
                walk(value, here)

    walk(top, ())
    return lines


def validate(document: Any, source: str, lines: dict[KeyPath, int], overridden: Sequence[KeyPath] = ()) -> Config:
    """The config of a document of sections; ``lines``: where ``source`` has each key. Raises ConfigError."""
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        problems = [_explain(problem, source, lines, overridden) for problem in error.errors()]
        raise ConfigError("\n".join(problems)) from error


def _explain(problem: Any, source: str, lines: dict[KeyPath, int], overridden: Sequence[KeyPath]) -> str:
    path = tuple(str(part) for part in problem["loc"])
    if path[:2] == ("task", "parts"):
        path = path[:4]
    elif path[:1] != ("workflow",):  # a value of any other section is one thing for its user
        path = path[:2]
    key = key_name(path)
    is_conflict = problem["type"] == "conflict"
    paths = [*(tuple(name.split(".")) for name in problem["ctx"]["keys"]), path] if is_conflict else [path]
    where = _locate(paths, source, lines, overridden)
    if is_conflict:
        return f"{where}: {problem['msg']}"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(*path[:-1])
        everywhere = [f"{s}.{k}" for s in Config.model_fields for k in _known_keys(s)]
        same_name = [full for full in everywhere if full.partition(".")[2] == path[-1]]
        near = nearest(path[-1], known)
        if len(path) > 1 and near:
            hint = f"did you mean {key_name((*path[:-1], near))}?"
        elif same_name and len(path) < 3:
            hint = f"did you mean {same_name[0]}?"
        else:
            hint = did_you_mean(path[-1], known, "known keys")
        return f"{where}: unknown key '{key}'; {hint}"
    got = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
    expects_mapping = problem["type"] in ("dict_type", "model_type", "model_attributes_type")
    message = "expected a mapping, NAME: VALUE" if expects_mapping else problem["msg"]
    return f"{where}: {key}: {message[0].lower()}{message[1:]}{got}"


def key_name(path: KeyPath) -> str:
    """A key as a user writes it: ``task[1].level`` for a key of a mixture's part."""
    if path[:2] == ("task", "parts") and len(path) > 2:
        return ".".join((f"task[{path[2]}]", *path[3:]))
    return ".".join(path)


def _locate(paths: list[KeyPath], source: str, lines: dict[KeyPath, int], overridden: Sequence[KeyPath]) -> str:
    """Where keys are set: the first override among them, else the first one in the file."""
    for path in paths:
        if path in overridden:
            return f"--set {key_name(path)}"
    for path in paths:
        if path in lines:
            return f"{source}, line {lines[path]}"
    for path in paths:
        outer = next((path[:length] for length in range(len(path) - 1, 1, -1) if path[:length] in lines), None)
        if outer:
            return f"{source}, line {lines[outer]}"
    return source


def _known_keys(*path: str) -> list[str]:
    """Keys of the mapping at a path: of the config, of a section, or of a part of one."""
    models: list[Any] = [Config]
    for part in path:
        if not part.isdigit():  # the place in a list
            found = [model.model_fields.get(part) for model in models]
            models = [inner for field in found if field for inner in _models_in(field.annotation)]
    return [name for model in models for name in model.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models in a type, such as those of an optional value or of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
