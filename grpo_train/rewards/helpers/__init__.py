"""Judging in separate processes that are killed when they hang."""

from grpo_train.rewards.helpers.pool import GRADER_FAILURES, Helper, HelperEnded, HelperError, Helpers, HelperTimeout

__all__ = ["GRADER_FAILURES", "Helper", "HelperEnded", "HelperError", "HelperTimeout", "Helpers"]
