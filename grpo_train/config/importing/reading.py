"""The options in a file: a YAML config of a library, or a script or text with its arguments. Torch-free."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from grpo_train.config.importing.table import Given
from grpo_train.config.loading import ConfigError
from grpo_train.config.schema import Config
from grpo_train.config.yaml_text import InvalidYaml, compose_yaml, line_of, load_yaml, value_of
from grpo_train.run_dir.files import number_in

VERL_SECTIONS = ("actor_rollout_ref", "algorithm", "data", "trainer", "critic", "reward_model", "reward")
MAX_LINE = 100_000
"""Characters; shlex takes ten seconds for a million."""
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_SETTING = re.compile(r"\+{0,2}([a-z_][\w]*(?:\.\w+)+)=(.*)", re.DOTALL)
_COMMAND = re.compile(r"\bgrpo\b|grpo\w*\.py|main_ppo|accelerate|torchrun|^\s*--|^\s*\+{0,2}[a-z_]+(\.\w+)+=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


def read_options(text: str, source: str) -> tuple[str, dict[str, Given]]:
    """The library (``trl`` or ``verl``), and its options by name. Raises ConfigError."""
    found = _of_yaml(text, source)
    if found is None:
        found = _of_script(text, source)
    names = {name.partition(".")[0] for name in found}
    if {"run", "rollout", "task"} & names and names <= Config.model_fields.keys():
        raise ConfigError(f"{source}: already a config of grpo-train; use it with grpo-train train --cfg {source}")
    if not found:
        raise ConfigError(
            f"{source}: no options found; expected a YAML config of TRL or verl, or a script with --name value or "
            "section.key=value"
        )
    is_verl = any("." in name and name.partition(".")[0] in VERL_SECTIONS for name in found) or (
        "actor_rollout_ref" in names
    )
    return "verl" if is_verl else "trl", found


def _of_yaml(text: str, source: str) -> dict[str, Given] | None:
    """Options of a mapping; None where the text is something else."""
    if text.startswith("#!"):
        return None
    try:
        top = compose_yaml(text)
    except InvalidYaml as error:
        if _looks_like_a_script(text):
            return None
        raise ConfigError(f"{source}, line {error.line}: {error}" if error.line else f"{source}: {error}") from error
    if not isinstance(top, yaml.MappingNode):
        return None
    try:
        return dict(_entries(top, ""))
    except InvalidYaml as error:
        raise ConfigError(f"{source}, line {error.line}: {error}" if error.line else f"{source}: {error}") from error


def _looks_like_a_script(text: str) -> bool:
    return any(_COMMAND.search(line) for line in text.splitlines())


def _entries(node: yaml.MappingNode, path: str) -> Iterator[tuple[str, Given]]:
    """Top-level keys; those below the sections of verl with dots."""
    for key, value in node.value:
        name = f"{path}{key.value}"
        if isinstance(value, yaml.MappingNode) and (path or str(key.value) in VERL_SECTIONS):
            yield from _entries(value, f"{name}.")
        else:
            yield name, Given(_number(value_of(value)), line_of(key))


def _of_script(text: str, source: str) -> dict[str, Given]:
    """Options of the commands that train, after shell variables that the script sets."""
    found: dict[str, Given] = {}
    variables = {"HOME": "~"}
    continued = False
    is_command = False
    option = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not continued:
            is_command, option = bool(_COMMAND.search(line)), ""
        if len(line) > MAX_LINE:
            raise ConfigError(f"{source}, line {number}: {len(line):,} characters, which is not a script's line")
        body = line.rstrip()
        continues = body.endswith("\\")
        try:
            words = shlex.split(body.removesuffix("\\"), comments=True)
        except ValueError:
            if not is_command:
                continued = continues
                continue
            message = "an open quotation mark; write the option on one line"
            raise ConfigError(f"{source}, line {number}: {message}") from None
        words = [_expanded(word, variables) for word in words]
        assigned = _ASSIGNED.fullmatch(words[0]) if len(words) == 1 and not continued else None
        if words[:1] == ["export"] and len(words) == 2:
            assigned = _ASSIGNED.fullmatch(words[1])
        if assigned and "." not in assigned[1]:
            variables[assigned[1]] = assigned[2]
        elif is_command:
            option = _add(found, words, number, option)
        continued = continues
    return found


def _add(found: dict[str, Given], words: list[str], line: int, option: str) -> str:
    """Add the options of a line; returns the one that further words belong to."""
    for word in words:
        if setting := _SETTING.fullmatch(word):
            found[setting[1]], option = Given(_value(setting[2]), line), ""
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = name.replace("-", "_")
            found[option] = Given(_value(value) if equals else True, line)
        elif option and not (word.endswith(".py") or re.match(r"-[a-zA-Z]|[&|;<>]|\$[@*]", word)):
            before = found[option].value
            value = _value(word)
            found[option] = Given(value if before is True else [*_listed(before), value], line)
        else:
            option = ""
    return option


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """A word with the variables that the script has set before; others stay."""
    return _VARIABLE.sub(lambda name: variables.get(name[1] or name[3], name[2] or name[0]), word)


def _value(text: str) -> Any:
    try:
        return _number(load_yaml(text)) if text else None
    except InvalidYaml:
        return text


def _number(value: Any) -> Any:
    """YAML reads 1e-6 and None as texts."""
    if value == "None":
        return None
    if isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+[eE][-+]?\d+", value):
        return number_in(value)
    return value
