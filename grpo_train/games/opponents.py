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
OPPONENTS: Mapping[str, Mapping[str, Opponent]] = {
    "tictactoe": {"random": Opponent(uniform), "minimax": Opponent(tictactoe.minimax)},
    "kuhn_poker": {"random": Opponent(uniform), "equilibrium": Opponent(_equilibrium)},
    "negotiation": {"random": Opponent(uniform), "fair": Opponent(negotiation.fair)},
}
"""Opponents by game and by name in a config, weakest first."""
