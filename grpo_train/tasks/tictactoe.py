"""tictactoe: tic-tac-toe by self-play, both sides one policy; evaluated against a random player and minimax."""

from __future__ import annotations

from grpo_train.config import schema
from grpo_train.games import TicTacToe
from grpo_train.tasks.shared.self_play import GAME_OPTIONS, SelfPlayTask

LABEL = "tictactoe"
OPTIONS = GAME_OPTIONS


def load(config: schema.Task) -> SelfPlayTask:
    """The task; ``config.template`` compact shows the bare board."""
    return SelfPlayTask(name="tictactoe", label=LABEL, game=TicTacToe(), turns=9, config=config)
