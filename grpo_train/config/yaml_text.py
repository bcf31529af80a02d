"""YAML that anybody may have written: whatever is wrong with a text is one exception that knows the line.

PyYAML has others: whatever its readers of numbers, truth values and times raise, and RecursionError for deep nesting,
which it finds late. It accepts duplicate keys, and aliases that make a short text endless.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Of a document, with what its aliases repeat."""


class InvalidYaml(ValueError):
    """A text that cannot be used; the message is the reason without the file."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line
        """From 1, if known."""

    def at(self, file: str) -> str:
        """``FILE:LINE: REASON``."""
        return f"{file}:{self.line}: {self}" if self.line else f"{file}: {self}"


def load_yaml(text: str) -> Any:
    """The value of a document; None of an empty one. Raises InvalidYaml."""
    node = compose_yaml(text)
    return None if node is None else value_of(node)


def section_of(text: str, name: str) -> dict[str, Any]:
    """A section of a config that the engine wrote; {} without it. Raises InvalidYaml."""
    document = load_yaml(text)
    section = document.get(name, {}) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise InvalidYaml(f"'{name}' must be a section with keys and values")
    return section


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a document, which have lines; None of an empty one. Raises InvalidYaml."""
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.depth > MAX_DEPTH:
                raise _too_deep(self.peek_event().start_mark.line + 1)
            self.depth += 1
            node: yaml.Node | None = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        top: yaml.Node | None = yaml.compose(text, Loader=Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidYaml(f"invalid YAML: character #x{ord(text[error.position]):04x} is not allowed", line) from None
    except yaml.YAMLError as error:
        raise _invalid(error) from None
    if top is not None:
        _check(top)
    return top


def value_of(node: yaml.Node) -> Any:
    """The value of a node of :func:`compose_yaml`. Raises InvalidYaml."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (yaml.YAMLError, InvalidYaml):
                raise
            except Exception:  # 2026-13-45, !!bool 7, 5,000 digits
                kind = node.tag.rpartition(":")[2]
                raise InvalidYaml(f"invalid YAML: not a valid {kind}", line_of(node)) from None

    try:
        return Loader("").construct_document(node)
    except yaml.YAMLError as error:
        raise _invalid(error) from None


def line_of(node: yaml.Node) -> int:
    """The line of a node, from 1."""
    return int(node.start_mark.line) + 1


def _invalid(error: Any) -> InvalidYaml:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or error
    return InvalidYaml(f"invalid YAML: {reason}", mark.line + 1 if mark else None)


def _too_deep(line: int) -> InvalidYaml:
    return InvalidYaml(f"invalid YAML: nested more than {MAX_DEPTH} levels deep", line)


def _check(top: yaml.Node) -> None:
    """Refuse duplicate keys, and what is too deep or, with what aliases repeat, too large."""
    import yaml

    left: list[tuple[yaml.Node, tuple[str, ...]]] = [(top, ())]
    count = 0
    while left:
        node, path = left.pop()
        count += 1
        if len(path) > MAX_DEPTH:
            raise _too_deep(line_of(node))
        if count > MAX_VALUES:
            raise InvalidYaml(f"invalid YAML: more than {MAX_VALUES:,} values, repeated by aliases", line_of(top))
        if isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                here = (*path, str(key.value))
                if here[-1] in lines:
                    first = lines[here[-1]]
                    raise InvalidYaml(f"duplicate key '{'.'.join(here)}' (first defined on line {first})", line_of(key))
                lines[here[-1]] = line_of(key)
                left += [(key, path), (value, here)]
        elif isinstance(node, yaml.SequenceNode):
            left += [(item, (*path, str(index))) for index, item in enumerate(node.value)]


def read_plain_config(file: Path) -> dict[str, Any]:
    """A run's config as it is written, without defaults or checks; {} where it cannot be read."""
    try:
        config = load_yaml((read_bytes(file, MAX_RUN_FILE_BYTES) or b"").decode())
    except (Unreadable, OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
