"""Players that are no models: to evaluate against, and to know exactly what a game is worth."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grpo_train.games import kuhn_poker, negotiation, tictactoe
from grpo_train.games.base import Move, State


@dataclass(frozen=True)
class Opponent:
    """A player by the probabilities of its moves. It has no state of its own: a resumed match goes on as it was."""

    name: str
    """As in a configuration: "random", "minimax"."""
    policy: Callable[[Any], Mapping[Move, Fraction]]
    """The exact probability of each move that it may make in a state (of its own game, not over). It looks at nothing
    that the player to move does not know."""

    def choose(self, state: State, draw: random.Random) -> Move:
        """A move, by one draw from the caller's generator."""
        policy = self.policy(state)
        return draw.choices(list(policy), [float(share) for share in policy.values()])[0]


def uniform(state: State) -> Mapping[Move, Fraction]:
    """Every legal move equally likely."""
    moves = state.legal_moves()
    return {move: Fraction(1, len(moves)) for move in moves}


def _equilibrium(state: kuhn_poker.KuhnPokerState) -> Mapping[Move, Fraction]:
    return kuhn_poker.moves_of(EQUILIBRIUM, state)


EQUILIBRIUM = kuhn_poker.equilibrium()
RANDOM = Opponent("random", uniform)
OPPONENTS: Mapping[str, tuple[Opponent, ...]] = {
    "tictactoe": (RANDOM, Opponent("minimax", tictactoe.minimax)),
    "kuhn_poker": (RANDOM, Opponent("equilibrium", _equilibrium)),
    "negotiation": (RANDOM, Opponent("fair", negotiation.fair)),
}
"""By the game's name, the weakest first."""


def load_opponent(game: str, name: str) -> Opponent:
    """The opponent of this name in a game. Raises ValueError that names those there are."""
    for opponent in OPPONENTS.get(game, ()):
        if opponent.name == name:
            return opponent
    known = ", ".join(opponent.name for opponent in OPPONENTS.get(game, ())) or "none"
    raise ValueError(f"the game '{game}' has no opponent '{name}'; it has: {known}")
