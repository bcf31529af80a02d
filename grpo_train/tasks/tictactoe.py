"""Tic-tac-toe, by self-play; evaluated against a random player and minimax."""

from __future__ import annotations

from grpo_train.games import TicTacToe
from grpo_train.tasks.shared.self_play import self_play_kind

TASK = self_play_kind("tictactoe", "Tic-tac-toe, by self-play", TicTacToe(), turns=9)
