"""Negotiation over hats and books, by self-play; evaluated against a random and a fair player.

The score is the share of a side's points, 0 to 1.
"""

from __future__ import annotations

from grpo_train.games import Negotiation
from grpo_train.games.negotiation import MAX_OFFERS
from grpo_train.tasks.shared.self_play import self_play_kind

TASK = self_play_kind(
    "negotiation", "Negotiation over hats and books, by self-play", Negotiation(), turns=MAX_OFFERS + 1
)
