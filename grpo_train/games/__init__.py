"""Games for two, to train by self-play (SPIRAL, arXiv 2506.24119) and to evaluate against opponents known exactly."""

from collections.abc import Mapping

from grpo_train.games.base import Ending, Game, Match, MatchRules, Move, Returns, Role, State, Style
from grpo_train.games.kuhn_poker import KuhnPoker
from grpo_train.games.negotiation import Negotiation
from grpo_train.games.opponents import OPPONENTS, Opponent, load_opponent
from grpo_train.games.tictactoe import TicTacToe

__all__ = [
    "GAMES",
    "OPPONENTS",
    "Ending",
    "Game",
    "KuhnPoker",
    "Match",
    "MatchRules",
    "Move",
    "Negotiation",
    "Opponent",
    "Returns",
    "Role",
    "State",
    "Style",
    "TicTacToe",
    "load_game",
    "load_opponent",
]

GAMES: Mapping[str, Game] = {game.name: game for game in (TicTacToe(), KuhnPoker(), Negotiation())}
"""By name."""


def load_game(name: str) -> Game:
    """The game of this name. Raises ValueError that names those there are."""
    if name not in GAMES:
        raise ValueError(f"there is no game '{name}'; there are: {', '.join(GAMES)}")
    return GAMES[name]
