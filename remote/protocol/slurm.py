"""What a SLURM job asks for: ``slurm`` of a box in boxes.yaml, and the keys that one launch changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from grpo_train.run_dir.suggest import did_you_mean


@dataclass(frozen=True)
class JobOptions:
    """Resources of a job. What is not set is the cluster's default."""

    partition: str = ""
    account: str = ""
    time: str = ""
    """Time limit as sbatch takes it, such as ``24:00:00``; 120 s before it, the run saves and requeues."""
    nodes: int = 1
    gpus: int = 0
    """GPUs of each node."""
    cpus: int = 0
    """Cores of each node."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, each ``--name=value``."""

    def changed(self, values: Mapping[str, Any]) -> JobOptions:
        """With other values. Raises ValueError that names the key."""
        known = {item.name for item in fields(self)}
        checked: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                raise ValueError(f"unknown key '{key}'; {did_you_mean(key, sorted(known))}")
            checked[key] = _checked(key, value)
        return replace(self, **checked)

    def with_words(self, words: list[str]) -> JobOptions:
        """With ``key=value`` words. Raises ValueError."""
        pairs = [word.partition("=") for word in words]
        if wrong := next((key for key, sign, _ in pairs if not sign), None):
            raise ValueError(f"'{wrong}' is not key=value")
        further = (*self.options, *(value for key, _, value in pairs if key == "options"))
        values = {key: value for key, _, value in pairs if key != "options"}
        return self.changed({**values, "options": list(further)})

    def words(self) -> list[str]:
        """What is set, as ``key=value`` words."""
        given = [(item.name, getattr(self, item.name)) for item in fields(self) if item.name != "options"]
        set_ = [f"{name}={value}" for name, value in given if value not in ("", 0) and (name, value) != ("nodes", 1)]
        return [*set_, *(f"options={option}" for option in self.options)]

    def arguments(self) -> list[str]:
        """Options of sbatch."""
        named = [
            *((f"--{key}={value}") for key in ("partition", "account", "time") if (value := getattr(self, key))),
            *(f"--nodes={self.nodes}", "--ntasks-per-node=1"),
            *([f"--cpus-per-task={self.cpus}"] if self.cpus else []),
            *([f"--gres=gpu:{self.gpus}"] if self.gpus else []),
        ]
        return [*named, *self.options]


def _checked(key: str, value: Any) -> Any:
    if key in ("nodes", "gpus", "cpus"):
        text = str(value)
        if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) < (key == "nodes"):
            raise ValueError(f"'{key}' must be an integer of {int(key == 'nodes')} or more, not {value!r}")
        return int(text)
    if key == "options":
        if not isinstance(value, (list, tuple)) or not all(_is_option(item) for item in value):
            raise ValueError("'options' must be a list of options of sbatch, such as [--constraint=h100, --exclusive]")
        return tuple(value)
    text = str(value)
    if not text or not text.isprintable() or any(c.isspace() or c in "\"'\\" for c in text):
        hint = "; quote it, YAML reads 1:30:00 as a number" if key == "time" and isinstance(value, int) else ""
        raise ValueError(f"'{key}' must be one word, not {value!r}{hint}")
    if key == "time" and not isinstance(value, str):
        raise ValueError(
            f"'time' must be a string such as \"24:00:00\", not {value!r} (YAML reads 1:30:00 as a number)"
        )
    return text


def _is_option(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("-") and value.isprintable() and not set(value) & set("\"'\\")
