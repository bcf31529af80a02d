"""negotiation: dividing hats and books by offers, by self-play; evaluated against a random and a fair player."""

from __future__ import annotations

from grpo_train.config import schema
from grpo_train.games import Negotiation
from grpo_train.games.negotiation import MAX_OFFERS
from grpo_train.tasks.shared.self_play import GAME_OPTIONS, SelfPlayTask

LABEL = "negotiation"
OPTIONS = GAME_OPTIONS


def load(config: schema.Task) -> SelfPlayTask:
    """The task; a score is the share of a side's points, 0 to 1."""
    return SelfPlayTask(name="negotiation", label=LABEL, game=Negotiation(), turns=MAX_OFFERS + 1, config=config)
