"""Kuhn poker (Kuhn 1950, "A Simplified Two-Person Poker"), its equilibria and best responses.

Returns are in chips. An illegal move loses 1.5, less than the 2 of a lost called bet, but it is never an advantage:
folding loses 1, and no player has to bet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product
from typing import TypeAlias

from grpo_train.games.base import Game, Move, Returns, Role, State, Style, full_text

ROLES = ("first", "second")
CARDS = "JQK"
"""Lowest first."""
NAMES = {"J": "Jack", "Q": "Queen", "K": "King"}
LETTERS = {"check": "k", "bet": "b", "call": "c", "fold": "f"}
"""Moves in compact style: poker shorthand, with c for call and k for check."""
DONE = {"check": "checked", "bet": "bet", "call": "called", "fold": "folded"}
RULES = (
    "You are playing Kuhn poker. The deck has three cards: Jack, Queen and King, the King is the highest. Each of the "
    "two players antes 1 chip and gets one card, which the other one does not see. The first player may check or bet "
    "1 chip. After a check, the second player may check or bet 1 chip. Who faces a bet may call it with 1 chip, or "
    "fold and lose the ante. After two checks or a call the higher card wins the chips in the pot. A move is one of "
    "the words check, bet, call, fold."
)

Strategy: TypeAlias = Mapping[str, Fraction]
"""Probability of putting a chip in (bet or call) by information set (:attr:`KuhnPokerState.information_set`)."""


@dataclass(frozen=True)
class KuhnPokerState(State):
    """A deal and the moves since."""

    cards: tuple[str, str]
    """Card of each role."""
    history: tuple[Move, ...] = ()

    @property
    def player(self) -> Role:
        return 1 if len(self.history) % 2 else 0

    @property
    def returns(self) -> Returns | None:
        match self.history:
            case (*_, "fold"):
                won = -1.0 if self.player else 1.0  # the next player is the one who bet
            case ("check", "check"):
                won = self._showdown()
            case (*_, "call"):
                won = 2 * self._showdown()
            case _:
                return None
        return won, -won

    @property
    def information_set(self) -> str:
        """Knowledge of the player to move, its card and the moves so far: "Q|kb". The roles never share one."""
        return f"{self.cards[self.player]}|{''.join(LETTERS[move] for move in self.history)}"

    def legal_moves(self) -> tuple[Move, ...]:
        if self.is_over:
            return ()
        return ("fold", "call") if self.history[-1:] == ("bet",) else ("check", "bet")

    def observation(self, style: Style = "full") -> str:
        if style == "compact":
            return f"{self.information_set}\n{self.player + 1}:"
        card = self.cards[self.player]
        done = [f"the {ROLES[turn % 2]} player {DONE[move]}" for turn, move in enumerate(self.history)]
        situation = (
            f"You are the {ROLES[self.player]} player. Your card is the {NAMES[card]}. "
            f"So far: {', '.join(done) or 'nothing, it is the first move'}."
        )
        return full_text(RULES, situation, self.legal_moves())

    def _after(self, move: Move) -> KuhnPokerState:
        return KuhnPokerState(self.cards, (*self.history, move))

    def _showdown(self) -> float:
        return 1.0 if CARDS.index(self.cards[0]) > CARDS.index(self.cards[1]) else -1.0


class KuhnPoker(Game):
    """One hand. Returns are chips won or lost: 1 or 2."""

    name = "kuhn_poker"
    roles = ROLES
    rules = RULES

    def deals(self) -> tuple[KuhnPokerState, ...]:
        return tuple(KuhnPokerState((one, two)) for one, two in permutations(CARDS, 2))

    def read(self, answer: str) -> Move | None:
        for move, letter in LETTERS.items():
            if answer in (move, letter):
                return move
        return None


def equilibrium(bluff: Fraction = Fraction(1, 6)) -> Strategy:
    """Kuhn's equilibrium for a given bluffing frequency; the value of the game is -1/18.

    Args:
        bluff: probability that the first player bets with the Jack, 0 to 1/3. With the default, the first player mixes
            with the Jack, the King, and a Queen that faces a bet.

    Raises:
        ValueError: ``bluff`` is out of range.
    """
    if not 0 <= bluff <= Fraction(1, 3):
        raise ValueError(f"bluff is {bluff}; it must be in [0, 1/3]")
    never, always, third = Fraction(0), Fraction(1), Fraction(1, 3)
    return {
        "J|": bluff, "Q|": never, "K|": 3 * bluff,
        "J|kb": never, "Q|kb": bluff + third, "K|kb": always,
        "J|k": third, "Q|k": never, "K|k": always,
        "J|b": never, "Q|b": third, "K|b": always,
    }  # fmt: skip


def moves_of(strategy: Strategy, state: KuhnPokerState) -> Mapping[Move, Fraction]:
    """Probability of each legal move, without moves of probability 0."""
    quiet, chip = state.legal_moves()
    likely = strategy[state.information_set]
    return {move: share for move, share in ((quiet, 1 - likely), (chip, likely)) if share}


def average_win(first: Strategy, second: Strategy) -> Fraction:
    """Exact average win of the first player over all six deals, in chips per hand."""
    deals = KuhnPoker().deals()
    return sum((_value(deal, (first, second)) for deal in deals), Fraction(0)) / len(deals)


def best_response(strategy: Strategy, role: Role) -> tuple[Fraction, Strategy]:
    """Best response of ``role`` to ``strategy``: average win in chips per hand, and the response.

    Searches all 64 pure strategies, which include a best response. ``strategy`` needs only the other role's six
    information sets; the response has those of ``role``.
    """
    keys = [f"{card}|{history}" for history in (("", "kb") if role == 0 else ("k", "b")) for card in CARDS]
    best: tuple[Fraction, Strategy] | None = None
    for choice in product((Fraction(0), Fraction(1)), repeat=len(keys)):
        mine = dict(zip(keys, choice, strict=True))
        won = average_win(mine, strategy) if role == 0 else -average_win(strategy, mine)
        if best is None or won > best[0]:
            best = won, mine
    assert best is not None
    return best


def _value(state: KuhnPokerState, strategies: tuple[Strategy, Strategy]) -> Fraction:
    if state.returns is not None:
        return Fraction(state.returns[0])
    moves = moves_of(strategies[state.player], state)
    return sum((share * _value(state._after(move), strategies) for move, share in moves.items()), Fraction(0))
