"""Three-card poker, by self-play; evaluated against a random player and an equilibrium.

The score is the number of chips won or lost.
"""

from __future__ import annotations

from grpo_train.games import KuhnPoker
from grpo_train.tasks.shared.self_play import self_play_kind

TASK = self_play_kind("kuhn_poker", "Three-card poker, by self-play", KuhnPoker(), turns=3)
