"""The configuration of a run: its schema, and reading it from YAML. Torch-free."""

from grpo_train.config.loading import ConfigError, dump_config, load_config, read_config_text, with_changes

__all__ = ["ConfigError", "dump_config", "load_config", "read_config_text", "with_changes"]
