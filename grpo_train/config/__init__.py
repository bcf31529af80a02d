"""Configuration of a run: schema and loading. Torch-free. Loading is imported when it is first used: the schema takes
half a second, which commands without a config need not wait for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_train.config.loading import (
        ConfigError,
        changed_keys,
        dump_config,
        load_config,
        read_config_text,
        with_changes,
    )

__all__ = ["ConfigError", "changed_keys", "dump_config", "load_config", "read_config_text", "with_changes"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("grpo_train.config.loading"), name)
