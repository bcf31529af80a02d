"""``grpo-train``: the commands, one file a group. No torch in this process."""

from grpo_train.cli.commands import main

__all__ = ["main"]
