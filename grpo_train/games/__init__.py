"""Two-player games for self-play (SPIRAL, arXiv 2506.24119) and evaluation against exactly known opponents."""

from collections.abc import Mapping

from grpo_train.games.base import Game, Match, MatchRules, Move, Role, State
from grpo_train.games.kuhn_poker import KuhnPoker
from grpo_train.games.negotiation import Negotiation
from grpo_train.games.opponents import OPPONENTS, Opponent
from grpo_train.games.tictactoe import TicTacToe

__all__ = [
    "GAMES", "OPPONENTS", "Game", "KuhnPoker", "Match", "MatchRules", "Move", "Negotiation", "Opponent", "Role",
    "State", "TicTacToe",
]  # fmt: skip

GAMES: Mapping[str, Game] = {game.name: game for game in (TicTacToe(), KuhnPoker(), Negotiation())}
"""Games by name."""
