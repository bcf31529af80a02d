"""Advantages for self-play: each role's return minus its running average. Plain numbers, no tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


class RoleBaselines:
    """Role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119; ``train_spiral.py`` and ``spiral/utils.py``).

    One policy plays both sides. In a zero-sum game its mean return is always 0, and without a baseline per role the
    side favored by the rules would be rewarded forever. Each (game, role) has its own baseline b, an exponential
    average of the role's returns R that starts at 0:

        A = R - b,   then   b <- decay b + (1 - decay) R

    b is read before the update, so that A stays unbiased. Every turn of a role in a game has the same A (SPIRAL's
    discount is 1). Nothing is divided by a standard deviation.

    SPIRAL's release keeps averages by role in each actor process, prime-rl's ``orchestrator/algo/rae.py`` by
    (environment, role), as here. With several ranks, gather all returns and score them on every rank in the order of
    the games: the averages are then the same on every rank and for any number of ranks.
    """

    def __init__(self, decay: float = 0.95) -> None:
        """``decay`` in [0, 1); raises ValueError outside it."""
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; it must be in [0, 1)")
        self.decay = decay
        self._baselines: dict[tuple[str, str], float] = {}

    def baseline(self, game: str, role: str) -> float:
        """Average return of the role in a game; 0 before its first."""
        return self._baselines.get((game, role), 0.0)

    def advantages(self, games: Iterable[tuple[str, Mapping[str, float]]]) -> list[dict[str, float]]:
        """Advantages of finished games; updates the baselines.

        Args:
            games: name and returns by role of each game, in the order of the updates. A game against a fixed opponent
                has only the policy's role.

        Returns:
            For each game, a mapping from role to advantage.

        Raises:
            ValueError: a return is not finite; the baselines are unchanged.
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
        """Plain numbers and strings, for a checkpoint."""
        return {"baselines": [[game, role, value] for (game, role), value in sorted(self._baselines.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``, bit-exact. It holds no decay: a resumed run may change it."""
        self._baselines = {(str(game), str(role)): float(value) for game, role, value in state["baselines"]}

    def _advantage(self, game: str, role: str, value: float) -> float:
        before = self.baseline(game, role)
        self._baselines[game, role] = self.decay * before + (1 - self.decay) * value
        return value - before
