"""Judging in separate processes that are killed when they hang."""

from grpo_train.rewards.helpers.pool import HelperError, Helpers, HelperTimeout

__all__ = ["HelperError", "HelperTimeout", "Helpers"]
