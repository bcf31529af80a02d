"""``tracking``: metrics besides the logs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from grpo_train.config.sections.base import PositiveFloat, Section


class Tracking(Section):
    """Metrics besides the JSONL logs."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    gpu_interval: PositiveFloat = 2.0
    """Seconds between GPU samples."""
    token_rows: int | None = Field(default=None, ge=0, le=10_000)
    """Completions of each update whose tokens are kept in tokens.jsonl (log-probability, entropy, ratio, clipping;
    about 6 bytes a token), those of the groups with the largest spread of rewards first; 0 = none. Default: two groups,
    less what would exceed a quarter of rollouts.jsonl."""
    wandb: Literal["off", "offline", "online", "auto"] = "off"
    """Weights & Biases: ``auto`` = online with an API key and a route to the server, offline without the route, off
    without the key or the package. Its failures never delay training."""
    wandb_entity: str | None = None
    """User or team. Default: WANDB_ENTITY, else the account's own."""
    wandb_project: str | None = None
    """Project. Default: WANDB_PROJECT, else grpo-tui."""
    wandb_group: str | None = None
    """Group of the run and of its resumes from an earlier step. Default: WANDB_RUN_GROUP, else the run's name."""
    wandb_tags: list[str] = Field(default_factory=list)
    """Tags. Empty: WANDB_TAGS, separated by commas."""
    wandb_completions: int = Field(default=0, ge=0, le=1_000)
    """Completions of each step that are sent, as the table ``completions``; 0 = none. Prompts leave the machine with
    them."""

    @field_validator("wandb", mode="before")
    @classmethod
    def _read_off(cls, value: Any) -> Any:
        """YAML reads an unquoted off as false."""
        return "off" if value is False else value
