"""Configuration of a run: schema and loading. Torch-free."""

from grpo_train.config.loading import (
    ConfigError,
    changed_keys,
    dump_config,
    load_config,
    read_config_text,
    with_changes,
)

__all__ = ["ConfigError", "changed_keys", "dump_config", "load_config", "read_config_text", "with_changes"]
