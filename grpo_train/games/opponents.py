"""Programmed opponents with exactly known move probabilities."""

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
    """A player defined by its move probabilities. It is stateless, so a match can resume at any move."""

    name: str
    """Name in a config, e.g. "random", "minimax"."""
    policy: Callable[[Any], Mapping[Move, Fraction]]
    """Exact move probabilities in a state of its game that is not over. It uses only what the player to move knows."""

    def choose(self, state: State, draw: random.Random) -> Move:
        """Draw a move, with one draw from the caller's generator."""
        policy = self.policy(state)
        return draw.choices(list(policy), [float(share) for share in policy.values()])[0]


def uniform(state: State) -> Mapping[Move, Fraction]:
    """Uniform over legal moves."""
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
"""Opponents by game name, weakest first."""


def load_opponent(game: str, name: str) -> Opponent:
    """Opponent by name. Raises ValueError for an unknown name."""
    for opponent in OPPONENTS.get(game, ()):
        if opponent.name == name:
            return opponent
    known = ", ".join(opponent.name for opponent in OPPONENTS.get(game, ())) or "none"
    raise ValueError(f"unknown opponent '{name}' of game '{game}'; known: {known}")
