"""kuhn_poker: poker with three cards by self-play; evaluated against a random player and an equilibrium."""

from __future__ import annotations

from grpo_train.config import schema
from grpo_train.games import KuhnPoker
from grpo_train.tasks.shared.self_play import GAME_OPTIONS, SelfPlayTask

LABEL = "kuhn_poker"
OPTIONS = GAME_OPTIONS


def load(config: schema.Task) -> SelfPlayTask:
    """The task; a score is chips won or lost."""
    return SelfPlayTask(name="kuhn_poker", label=LABEL, game=KuhnPoker(), turns=3, config=config)
