"""Advantages for self-play: each role's return against that role's usual one. Plain numbers, no tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


class RoleBaselines:
    """Role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119; ``train_spiral.py`` and ``spiral/utils.py``).

    One policy plays both sides. In a zero-sum game the mean return is 0 whatever it does, and a side that has the
    better of the rules would be praised for it forever. So every (game, role) has a baseline b of its own, an
    exponential average of that role's returns R that starts at 0:

        A = R - b,   then   b <- decay b + (1 - decay) R

    b is read before the return enters it, so that A stays an unbiased estimate. Every turn that a role took in a game
    has the same A (SPIRAL's discount is 1). Nothing is divided by a standard deviation.

    SPIRAL's release keeps its averages by role alone and in each actor process by itself, prime-rl's
    ``orchestrator/algo/rae.py`` once by (environment, role), as here. Where several ranks play, gather the returns of
    all and score them on every rank in the order of the games: then the averages are alike everywhere, and the same
    whatever the number of ranks.
    """

    def __init__(self, decay: float = 0.95) -> None:
        """``decay`` in [0, 1). Raises ValueError for another."""
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}: it must be at least 0 and below 1")
        self.decay = decay
        self._baselines: dict[tuple[str, str], float] = {}

    def baseline(self, game: str, role: str) -> float:
        """What the role's returns in a game usually are; 0 before its first."""
        return self._baselines.get((game, role), 0.0)

    def baselines(self) -> dict[tuple[str, str], float]:
        """All baselines by (game, role), sorted."""
        return dict(sorted(self._baselines.items()))

    def advantages(self, games: Iterable[tuple[str, Mapping[str, float]]]) -> list[dict[str, float]]:
        """The advantages of finished games, and the baselines moved on by them.

        Args:
            games: each game's name and its returns by role, in the order in which they count; of a game against a
                fixed opponent, only the role that the policy played.

        Returns:
            As many mappings from role to advantage, in the same order.

        Raises:
            ValueError: a return is not finite; no baseline has moved then.
        """
        games = list(games)
        for index, (game, returns) in enumerate(games):
            for role, value in returns.items():
                if not math.isfinite(value):
                    raise ValueError(f"game {index} ({game}): the return of {role} is {value}")
        return [
            {role: self._advantage(game, role, value) for role, value in returns.items()} for game, returns in games
        ]

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for a checkpoint."""
        return {"baselines": [[game, role, value] for (game, role), value in self.baselines().items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``, bit for bit. The decay is not part of it: a resumed run may have another."""
        self._baselines = {(str(game), str(role)): float(value) for game, role, value in state["baselines"]}

    def _advantage(self, game: str, role: str, value: float) -> float:
        before = self.baseline(game, role)
        self._baselines[game, role] = self.decay * before + (1 - self.decay) * value
        return value - before
