"""What a game is: two players who take turns, moves that can be checked, returns at the end. Torch-free.

States never change: a move makes a new one. Chance acts only when a game is dealt, from a generator of that game's own
(TextArena, which SPIRAL plays, seeds the global one: a run could not be resumed bit for bit).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal

Role = Literal[0, 1]
"""0 moves first."""
Move = str
"""A move in its one spelling: "5", "bet", "2,1"."""
Returns = tuple[float, float]
"""What a game is worth to role 0 and to role 1."""
Style = Literal["compact", "full"]
"""``compact`` is for tiny models and costs a dozen tokens; ``full`` explains everything in plain words."""
Ending = Literal["finished", "unparsable", "illegal", "too_long"]
"""Why a match is over: by the game's own rules, a completion without a move in it, a move that the state does not
allow, or ``MatchRules.max_turns``."""

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"
OPEN_BOX, CLOSE_BOX = "\\boxed{", "}"


class State(ABC):
    """A position of a game; subclasses are frozen dataclasses."""

    @property
    @abstractmethod
    def player(self) -> Role:
        """The role to move; says nothing once the game is over."""

    @property
    @abstractmethod
    def returns(self) -> Returns | None:
        """What the game was worth to each role; None while it goes on."""

    @property
    def is_over(self) -> bool:
        return self.returns is not None

    @abstractmethod
    def legal_moves(self) -> tuple[Move, ...]:
        """The moves of ``player`` in a fixed order; none once the game is over."""

    @abstractmethod
    def observation(self, style: Style = "full") -> str:
        """All that ``player`` may know, as the text of a prompt: nothing of the other's private information.

        ``compact`` is the whole prompt; ``full`` is a question, to be put into a chat or R1 template.
        """

    def play(self, move: Move) -> State:
        """The state after a move. Raises ValueError for one that is not legal."""
        if move not in self.legal_moves():
            raise ValueError(f"'{move}' is no legal move here; legal: {', '.join(self.legal_moves()) or 'none'}")
        return self._after(move)

    @abstractmethod
    def _after(self, move: Move) -> State:
        """The state after a legal move."""


class Game(ABC):
    """The rules of a game, and where its states start."""

    name: str
    """As in a configuration: "tictactoe"."""
    roles: tuple[str, str]
    """What the roles are called: ("X", "O")."""
    rules: str
    """The rules in plain words, the spelling of the moves included; part of every ``full`` observation."""

    @abstractmethod
    def deals(self) -> tuple[State, ...]:
        """All states a game may start from, equally likely."""

    def new(self, seed: int | str) -> State:
        """The state that the game with this seed starts from: a pure function."""
        deals = self.deals()
        return deals[random.Random(f"{self.name} {seed}").randrange(len(deals))]

    def parse_move(self, completion: str) -> Move | None:
        """The move a completion gives, legal or not; None where there is none. Never raises."""
        answer = answer_of(completion)
        return None if answer is None else self.read(answer.strip().lower())

    @abstractmethod
    def read(self, answer: str) -> Move | None:
        """The move that an answer spells (stripped, lower case), in words or in compact style's letters."""


@dataclass(frozen=True)
class MatchRules:
    """How a match ends that its players do not finish. SPIRAL's values (train_spiral.py), which do not sum to zero."""

    offender: float = -1.5
    """The return of who made an illegal move, or none; the match ends there."""
    other: float = 0.5
    """The return of the other one."""
    unfinished: float = 0.0
    """The return of both after ``max_turns``."""
    max_turns: int = 50
    """Moves of both together after which a match that goes on is given up."""


@dataclass(frozen=True)
class Match:
    """A game that models play: what they write is checked, and whatever they write the match ends."""

    game: Game
    state: State
    """After an offence, the state in which it was committed."""
    rules: MatchRules = field(default_factory=MatchRules)
    moves: tuple[Move, ...] = ()
    """The moves so far, of both roles in turn."""
    offence: Literal["unparsable", "illegal"] | None = None

    @classmethod
    def start(cls, game: Game, seed: int | str, rules: MatchRules | None = None) -> Match:
        """The match with this seed, before its first move."""
        return cls(game, game.new(seed), rules or MatchRules())

    @property
    def player(self) -> Role:
        """The role to move, or the one that committed the offence."""
        return self.state.player

    @property
    def ending(self) -> Ending | None:
        """Why the match is over; None while it goes on."""
        if self.offence:
            return self.offence
        if self.state.is_over:
            return "finished"
        return "too_long" if len(self.moves) >= self.rules.max_turns else None

    @property
    def returns(self) -> Returns | None:
        """What the match was worth to each role; None while it goes on."""
        if self.offence:
            bad, good = self.rules.offender, self.rules.other
            return (bad, good) if self.player == 0 else (good, bad)
        if self.ending == "too_long":
            return self.rules.unfinished, self.rules.unfinished
        return self.state.returns

    def reply(self, completion: str) -> Match:
        """The match after what the player to move has written, whatever that is. Raises ValueError when it is over."""
        move = self.game.parse_move(completion)
        if move is not None:
            return self.play(move)
        self._check_open()
        return replace(self, offence="unparsable")

    def play(self, move: Move) -> Match:
        """The match after a move; an illegal one ends it. Raises ValueError when it is over."""
        self._check_open()
        if move not in self.state.legal_moves():
            return replace(self, offence="illegal")
        return replace(self, state=self.state.play(move), moves=(*self.moves, move))

    def _check_open(self) -> None:
        if self.ending:
            raise ValueError(f"this match of {self.game.name} is over ({self.ending})")


def answer_of(completion: str) -> str | None:
    """The text in the last ``<answer>…</answer>`` or ``\\boxed{…}``, whichever opens later; None if that never closes.

    The last one, because a player that thinks aloud may name moves it then rejects; and never an earlier one in its
    stead, because what was cut off might have been another move.
    """
    tag, box = completion.rfind(OPEN_ANSWER), completion.rfind(OPEN_BOX)
    opening, closing = (OPEN_ANSWER, CLOSE_ANSWER) if tag > box else (OPEN_BOX, CLOSE_BOX)
    answer, closed, _ = completion[max(tag, box) + len(opening) :].partition(closing)
    return answer if max(tag, box) >= 0 and closed else None


def full_text(rules: str, situation: str, legal_moves: tuple[Move, ...]) -> str:
    """A ``full`` observation. No move serves as an example of the format: models copy examples."""
    return (
        f"{rules}\n\n{situation}\n\nYour legal moves: {'; '.join(legal_moves)}\n"
        f"Think first, then write one of them between {OPEN_ANSWER} and {CLOSE_ANSWER}."
    )
