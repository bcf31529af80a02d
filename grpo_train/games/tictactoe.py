"""Tic-tac-toe and its solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from grpo_train.games.base import Game, Move, Returns, Role, State, Style, full_text

ROLES = ("X", "O")
EMPTY = "."
CELLS = tuple("123456789")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
RULES = (
    "You are playing tic-tac-toe. The cells of the board are numbered 1 to 9, row by row from the top left. X moves "
    "first; X and O take turns to mark one empty cell. Who has three marks in a row, a column or a diagonal wins; a "
    "full board without such a line is a draw. A move is the number of an empty cell."
)


@dataclass(frozen=True)
class TicTacToeState(State):
    """A board; the player to move follows from it."""

    cells: str = EMPTY * 9
    """X, O or a dot, row by row."""

    @property
    def player(self) -> Role:
        return 1 if self.cells.count("X") > self.cells.count("O") else 0

    @property
    def returns(self) -> Returns | None:
        for a, b, c in LINES:
            if self.cells[a] != EMPTY and self.cells[a] == self.cells[b] == self.cells[c]:
                return (1.0, -1.0) if self.cells[a] == "X" else (-1.0, 1.0)
        return None if EMPTY in self.cells else (0.0, 0.0)

    def legal_moves(self) -> tuple[Move, ...]:
        if self.is_over:
            return ()
        return tuple(name for name, cell in zip(CELLS, self.cells, strict=True) if cell == EMPTY)

    def observation(self, style: Style = "full") -> str:
        # An empty cell shows its number, which is the move.
        shown = [name if cell == EMPTY else cell for name, cell in zip(CELLS, self.cells, strict=True)]
        rows = [shown[first : first + 3] for first in (0, 3, 6)]
        role = ROLES[self.player]
        if style == "compact":
            return "|".join("".join(row) for row in rows) + f"\n{role}:"
        board = "\n---+---+---\n".join(" " + " | ".join(row) for row in rows)
        return full_text(RULES, f"You are {role}. The board (a number is an empty cell):\n{board}", self.legal_moves())

    def _after(self, move: Move) -> TicTacToeState:
        cell = CELLS.index(move)
        return TicTacToeState(self.cells[:cell] + ROLES[self.player] + self.cells[cell + 1 :])


class TicTacToe(Game):
    """Starts with the empty board. Returns +1 to the winner, -1 to the loser, 0 for a draw."""

    name = "tictactoe"
    roles = ROLES
    rules = RULES

    def deals(self) -> tuple[TicTacToeState, ...]:
        return (TicTacToeState(),)

    def read(self, answer: str) -> Move | None:
        return answer if answer in CELLS else None


@cache
def position_value(state: TicTacToeState) -> int:
    """Value of the position for X with optimal play: 1, 0 or -1 (minimax; at most 5,478 positions)."""
    if state.returns is not None:
        return int(state.returns[0])
    values = [position_value(state._after(move)) for move in state.legal_moves()]
    return max(values) if state.player == 0 else min(values)


def minimax(state: TicTacToeState) -> Mapping[Move, Fraction]:
    """Uniform over the moves that keep the position's value, without a preference for winning sooner."""
    best = [move for move in state.legal_moves() if position_value(state._after(move)) == position_value(state)]
    return {move: Fraction(1, len(best)) for move in best}
