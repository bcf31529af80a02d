"""Interface of a game: two players who take turns, moves that can be checked, returns at the end. Torch-free.

States are immutable. Chance acts only when a game is dealt, from a generator seeded for that game. TextArena, which
SPIRAL uses, seeds the global generator, so a run could not resume bit-exact.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal

Role = Literal[0, 1]
"""0 moves first."""
Move = str
"""A move in canonical spelling: "5", "bet", "2,1"."""
Returns = tuple[float, float]
"""Returns of role 0 and role 1."""
Style = Literal["compact", "full"]
"""``compact`` is for tiny models and takes a dozen tokens; ``full`` explains everything in plain words."""
Ending = Literal["finished", "unparsable", "illegal", "too_long"]
"""Why a match is over: the game's rules, a completion without a move, an illegal move, or ``MatchRules.max_turns``."""

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"
OPEN_BOX, CLOSE_BOX = "\\boxed{", "}"


class State(ABC):
    """A position of a game; subclasses are frozen dataclasses."""

    @property
    @abstractmethod
    def player(self) -> Role:
        """The role to move; meaningless once the game is over."""

    @property
    @abstractmethod
    def returns(self) -> Returns | None:
        """Return of each role; None until the game is over."""

    @property
    def is_over(self) -> bool:
        return self.returns is not None

    @abstractmethod
    def legal_moves(self) -> tuple[Move, ...]:
        """Moves of ``player`` in a fixed order; empty once the game is over."""

    @abstractmethod
    def observation(self, style: Style = "full") -> str:
        """Prompt text with everything ``player`` may know, without the other player's private information.

        ``compact`` is a complete prompt; ``full`` is a question for a chat or R1 template.
        """

    def play(self, move: Move) -> State:
        """State after a move. Raises ValueError for an illegal one."""
        if move not in self.legal_moves():
            raise ValueError(f"'{move}' is not a legal move; legal: {', '.join(self.legal_moves()) or 'none'}")
        return self._after(move)

    @abstractmethod
    def _after(self, move: Move) -> State:
        """State after a legal move."""


class Game(ABC):
    """Rules and starting states of a game."""

    name: str
    """Name in a config, e.g. "tictactoe"."""
    roles: tuple[str, str]
    """Names of the roles, e.g. ("X", "O")."""
    rules: str
    """Rules in plain words with the spelling of the moves; part of every ``full`` observation."""

    @abstractmethod
    def deals(self) -> tuple[State, ...]:
        """Starting states, equally likely."""

    def new(self, seed: int | str) -> State:
        """Starting state of the game with this seed; a pure function."""
        deals = self.deals()
        return deals[random.Random(f"{self.name} {seed}").randrange(len(deals))]

    def parse_move(self, completion: str) -> Move | None:
        """The move in a completion, legal or not; None without one. Never raises."""
        answer = answer_of(completion)
        return None if answer is None else self.read(answer.strip().lower())

    @abstractmethod
    def read(self, answer: str) -> Move | None:
        """The move spelled by an answer (stripped, lower case), in full or in the letters of compact style."""


@dataclass(frozen=True)
class MatchRules:
    """Returns of matches that end early. The defaults are SPIRAL's (train_spiral.py) and do not sum to zero."""

    offender: float = -1.5
    """Return of the player whose illegal or missing move ends the match."""
    other: float = 0.5
    """Return of the other player."""
    unfinished: float = 0.0
    """Return of both players after ``max_turns``."""
    max_turns: int = 50
    """Maximum number of moves of both players together."""


@dataclass(frozen=True)
class Match:
    """A game played by models: their completions are checked, and every match ends."""

    game: Game
    state: State
    """After an offense, the state in which it was committed."""
    rules: MatchRules = field(default_factory=MatchRules)
    moves: tuple[Move, ...] = ()
    """Moves so far, of both roles in turn."""
    offense: Literal["unparsable", "illegal"] | None = None

    @property
    def player(self) -> Role:
        """The role to move, or the role that committed the offense."""
        return self.state.player

    @property
    def ending(self) -> Ending | None:
        """Why the match is over; None until then."""
        if self.offense:
            return self.offense
        if self.state.is_over:
            return "finished"
        return "too_long" if len(self.moves) >= self.rules.max_turns else None

    @property
    def returns(self) -> Returns | None:
        """Return of each role; None until the match is over."""
        if self.offense:
            bad, good = self.rules.offender, self.rules.other
            return (bad, good) if self.player == 0 else (good, bad)
        if self.ending == "too_long":
            return self.rules.unfinished, self.rules.unfinished
        return self.state.returns

    def reply(self, completion: str) -> Match:
        """Match after the completion of the player to move, whatever its content. Raises ValueError when it is over."""
        move = self.game.parse_move(completion)
        if move is not None:
            return self.play(move)
        self._check_open()
        return replace(self, offense="unparsable")

    def play(self, move: Move) -> Match:
        """Match after a move; an illegal one ends it. Raises ValueError when it is over."""
        self._check_open()
        if move not in self.state.legal_moves():
            return replace(self, offense="illegal")
        return replace(self, state=self.state.play(move), moves=(*self.moves, move))

    def _check_open(self) -> None:
        if self.ending:
            raise ValueError(f"this match of {self.game.name} is over ({self.ending})")


def answer_of(completion: str) -> str | None:
    """Text in the last ``<answer>…</answer>`` or ``\\boxed{…}``, whichever opens later; None if it is not closed.

    The last one, because reasoning may name moves that it then rejects. Never an earlier one instead, because the
    truncated answer might have been another move.
    """
    tag, box = completion.rfind(OPEN_ANSWER), completion.rfind(OPEN_BOX)
    opening, closing = (OPEN_ANSWER, CLOSE_ANSWER) if tag > box else (OPEN_BOX, CLOSE_BOX)
    answer, closed, _ = completion[max(tag, box) + len(opening) :].partition(closing)
    return answer if max(tag, box) >= 0 and closed else None


def full_text(rules: str, situation: str, legal_moves: tuple[Move, ...]) -> str:
    """A ``full`` observation. It shows no example move, since models copy examples."""
    return (
        f"{rules}\n\n{situation}\n\nYour legal moves: {'; '.join(legal_moves)}\n"
        f"Think first, then write one of them between {OPEN_ANSWER} and {CLOSE_ANSWER}."
    )
