"""What an option of another library is here: rows of a table, and the config that they make of a file. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from grpo_train.config.loading import ConfigError, KeyPath, changed_keys, validate
from grpo_train.config.schema import Config
from grpo_train.run_dir.errors import nearest
from grpo_train.run_dir.files import number_in


@dataclass(frozen=True)
class Row:
    """An option of another library."""

    name: str
    default: Any = None
    to: tuple[str, ...] = ()
    """Keys here; empty: without an equivalent."""
    how: str = ""
    """How the value is converted; of an option without an equivalent, what to do."""
    copied: bool = False
    """Whether the key takes the value as it is."""
    matters: bool = False
    """Whether another value than the default changes what is learned, and nothing here does the same."""
    only_given: bool = False
    """Whether the library's default is left out: the key's own default does not change what is learned."""


def same(name: str, default: Any, key: str, how: str = "") -> Row:
    """An option that is a key by another name."""
    return Row(name, default, (key,), how, copied=True)


def speed(name: str, default: Any, key: str, how: str = "") -> Row:
    """As :func:`same`, for memory or speed alone."""
    return Row(name, default, (key,), how, copied=True, only_given=True)


def turned(name: str, default: Any, keys: str, how: str) -> Row:
    """An option that becomes one or more keys by a rule."""
    return Row(name, default, tuple(keys.split()), how)


def lost(name: str, default: Any, how: str) -> Row:
    """An option that changes what is learned and has no equivalent."""
    return Row(name, default, (), how, matters=True)


def needless(how: str, names: str) -> list[Row]:
    """Options that do not change what is learned."""
    return [Row(name, None, (), how) for name in names.split()]


def by_name(*rows: Row | Iterable[Row]) -> dict[str, Row]:
    """A table from rows and lists of them."""
    flat = [row for each in rows for row in ([each] if isinstance(each, Row) else each)]
    return {row.name: row for row in flat}


@dataclass(frozen=True)
class Given:
    """The value of an option in a file."""

    value: Any
    line: int


@dataclass(frozen=True)
class Library:
    """A library whose options are known."""

    name: str
    version: str
    rows: Mapping[str, Row]
    convert: Callable[[Draft], None]
    """Sets what is not copied."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    def row(self, name: str) -> Row | None:
        """The row of an option: its own, or that of the longest prefix (``critic.*``)."""
        parts = name.split(".")
        prefixes = [".".join([*parts[:length], "*"]) for length in range(len(parts) - 1, 0, -1)]
        return next((self.rows[each] for each in (name, *prefixes) if each in self.rows), None)


@dataclass
class Draft:
    """A config in the making."""

    library: Library
    given: Mapping[str, Given]
    source: str
    nproc: int | None = None
    """Number of processes, if the user says it."""
    keys: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """``section.key``: its value, and the option that it is from."""
    not_translated: list[str] = field(default_factory=list)
    """What would be learned differently."""
    assumed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        """The value of an option, or its default there."""
        default = self.library.rows[name].default
        return self.given[name].value if name in self.given else default

    def has(self, name: str) -> bool:
        return name in self.given and self.given[name].value is not None

    def set(self, key: str, value: Any, source: str) -> None:
        self.keys[key] = (value, source)

    def lose(self, name: str, reason: str) -> None:
        """Name what is not translated, with what to do."""
        self.not_translated.append(f"{name}: {reason}")

    def integer(self, name: str) -> int:
        """A number of things. Raises ConfigError for another value."""
        value = self[name]
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not is_whole or not 1 <= value < 2**31:
            raise self.error(name, f"expected a whole number above 0, got {shown(value)}")
        return int(value)

    def word(self, name: str) -> str:
        """A name, in lower case; "no" for false. Raises ConfigError for a list or mapping."""
        value = self[name]
        if isinstance(value, list | dict):
            raise self.error(name, f"expected a name, got {shown(value)}")
        return "no" if value is False else str(value).lower()

    def words(self, name: str) -> list[str]:
        """A list of names, or a single one. Raises ConfigError for anything else."""
        value = self[name]
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(each, str) for each in values):
            raise self.error(name, f"expected a list of names, got {shown(value)}")
        return values

    def error(self, name: str, message: str) -> ConfigError:
        where = f", line {self.given[name].line}" if name in self.given else ""
        return ConfigError(f"{self.source}{where}: {name}: {message}")

    def set_cuts(self, top_p: str, top_k: str) -> None:
        """Cuts of the distribution, which need a correction here."""
        for key, name, whole in (("top_p", top_p, 1.0), ("top_k", top_k, 0)):
            value = whole if self[name] in (None, -1) else self[name]
            self.set(f"rollout.{key}", value, name)
            if value != whole and "algorithm.rollout_correction" not in self.keys:
                self.set("algorithm.rollout_correction", "token_truncate", name)
                self.assumed.append(f"algorithm.rollout_correction: {key} {shown(value)} without one is biased")

    def translate(self) -> Config:
        """Translate every option; returns the checked config. Raises ConfigError with the line of the file."""
        for name, given in self.given.items():
            row = self.library.row(name)
            if row is None:
                self.lose(name, f"not an option of {self.library.label}{_near(name, self.library.rows)}")
            elif not row.to and row.matters and _plain(given.value) != _plain(row.default):
                self.lose(f"{name} {shown(given.value)}", row.how)
            elif not row.to:
                self.left_out.append(f"{name} {shown(given.value)}: as here" if row.matters else f"{name}: {row.how}")
            elif isinstance(given.value, str) and "$" in given.value:
                self.lose(name, f"{shown(given.value)} is a variable that the script does not set; write its value")
        for row in self.library.rows.values():
            value = self[row.name]
            if row.copied and value is not None and (row.name in self.given or not row.only_given):
                self.set(row.to[0], value, row.name)
        self.library.convert(self)
        return self._checked()

    def _checked(self) -> Config:
        """The config of all keys; then only those stay that are given or needed for it."""
        order = [f"{section}.{key}" for section, keys in Config().model_dump().items() for key in keys]
        self.keys = {key: self.keys[key] for key in sorted(self.keys, key=order.index)}
        whole = self._config(self.keys)
        kept = {key: found for key, found in self.keys.items() if found[1] in self.given}
        for _ in range(2):  # some defaults depend on other keys
            missing = changed_keys(self._config(kept), whole)
            kept |= {key: found for key, found in self.keys.items() if key in missing}
        self.keys = {key: found for key, found in self.keys.items() if key in kept}
        self._name_the_rest()
        return whole

    def _config(self, keys: Mapping[str, tuple[Any, str]]) -> Config:
        document: dict[str, dict[str, Any]] = {}
        lines: dict[KeyPath, int] = {}
        for key, (value, source) in keys.items():
            section, _, name = key.partition(".")
            document.setdefault(section, {})[name] = value
            if source in self.given:
                lines[section, name] = self.given[source].line
        return validate(document, self.source, lines)

    def _name_the_rest(self) -> None:
        """Name the options that other ones made a key of, or that have no effect beside them."""
        named = {source for _, source in self.keys.values()}
        named |= {note.partition(":")[0].partition(" ")[0] for note in (*self.not_translated, *self.left_out)}
        for name in self.given:
            row = self.library.row(name)
            if row and row.to and name not in named:
                keys = [key for key in row.to if key in self.keys]
                self.left_out.append(f"{name}: {f'counted in {keys[0]}' if keys else 'as here, or without effect'}")

    def text(self) -> str:
        """The config as YAML; what is not translated, assumed and left out as comments."""
        lines = [f"# From {self.source} ({self.library.label}), by grpo-train import-config."]
        for title, notes in (
            ("Not translated, so the run would learn differently:", self.not_translated),
            ("Assumed:", self.assumed),
            ("Left out, without effect on what is learned:", self.left_out),
        ):
            lines += [f"# {title}", *(f"#   {_one_line(note)}" for note in notes)] if notes else []
        for section in Config.model_fields:
            keys = {key: found for key, found in self.keys.items() if key.partition(".")[0] == section}
            lines += ["", f"{section}:"] if keys else []
            for key, (value, source) in keys.items():
                origin = source if source in self.given else f"{source}, as by default there"
                lines.append(f"  {key.partition('.')[2]}: {_yaml(value)}  # {_one_line(origin)}")
        return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """A value in a sentence, shortened."""
    text = _one_line(str(value))
    return text if len(text) < 80 else f"{text[:77]}…"


def _near(name: str, rows: Iterable[str]) -> str:
    near = nearest(name, rows)
    return f"; did you mean {near}?" if near else ""


def _plain(value: Any) -> Any:
    """A value to compare with a default: texts of numbers and truth values as such."""
    if isinstance(value, str):
        found = number_in(value)
        return {"true": True, "false": False}.get(value.lower(), value) if found is None else found
    return value


def _yaml(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000).removesuffix("...\n").strip()
    )


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
