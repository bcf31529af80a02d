"""Kuhn poker (Kuhn 1950, "A Simplified Two-Person Poker"), its equilibria, and how much a strategy loses to the best.

Returns are in chips. The -1.5 of an illegal move is less than the 2 that a called bet may lose, but nothing to gain:
who folds loses 1, and nobody has to bet.
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
"""The moves in compact style: poker's shorthand, in which c is a call and k a check."""
DONE = {"check": "checked", "bet": "bet", "call": "called", "fold": "folded"}
RULES = (
    "You are playing Kuhn poker. The deck has three cards: Jack, Queen and King, the King is the highest. Each of the "
    "two players antes 1 chip and gets one card, which the other one does not see. The first player may check or bet "
    "1 chip. After a check, the second player may check or bet 1 chip. Who faces a bet may call it with 1 chip, or "
    "fold and lose the ante. After two checks or a call the higher card wins the chips in the pot. A move is one of "
    "the words check, bet, call, fold."
)

Strategy: TypeAlias = Mapping[str, Fraction]
"""By information set (:attr:`KuhnPokerState.information_set`), the probability to put a chip in: to bet, or to call."""


@dataclass(frozen=True)
class KuhnPokerState(State):
    """A deal and the moves since."""

    cards: tuple[str, str]
    """By role."""
    history: tuple[Move, ...] = ()

    @property
    def player(self) -> Role:
        return 1 if len(self.history) % 2 else 0

    @property
    def returns(self) -> Returns | None:
        match self.history:
            case (*_, "fold"):
                won = -1.0 if self.player else 1.0  # who would be next is who bet
            case ("check", "check"):
                won = self._showdown()
            case (*_, "call"):
                won = 2 * self._showdown()
            case _:
                return None
        return won, -won

    @property
    def information_set(self) -> str:
        """What the player to move knows: its card and the moves so far, "Q|kb"; two players never share one."""
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
    """One hand. The returns are chips won or lost: 1 or 2."""

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
    """Kuhn's equilibria, which differ only in how often the first player bets with the Jack; the value is -1/18.

    Args:
        bluff: that probability, 0 to 1/3. The default leaves the first player no pure choice with Jack, King, or a
            Queen that faces a bet.

    Raises:
        ValueError: ``bluff`` is out of range.
    """
    if not 0 <= bluff <= Fraction(1, 3):
        raise ValueError(f"bluff is {bluff}: the equilibria have 0 to 1/3")
    never, always, third = Fraction(0), Fraction(1), Fraction(1, 3)
    return {
        "J|": bluff, "Q|": never, "K|": 3 * bluff,
        "J|kb": never, "Q|kb": bluff + third, "K|kb": always,
        "J|k": third, "Q|k": never, "K|k": always,
        "J|b": never, "Q|b": third, "K|b": always,
    }  # fmt: skip


def moves_of(strategy: Strategy, state: KuhnPokerState) -> Mapping[Move, Fraction]:
    """The probability of each legal move; those of probability 0 are left out."""
    quiet, chip = state.legal_moves()
    likely = strategy[state.information_set]
    return {move: share for move, share in ((quiet, 1 - likely), (chip, likely)) if share}


def value(first: Strategy, second: Strategy) -> Fraction:
    """Chips a hand that the first player wins on average, exactly, over all six deals."""
    deals = KuhnPoker().deals()
    return sum((_value(deal, (first, second)) for deal in deals), Fraction(0)) / len(deals)


def best_response(strategy: Strategy, role: Role) -> tuple[Fraction, Strategy]:
    """The most chips a hand that ``role`` can win on average when the other role plays ``strategy``, and how.

    Tries all 64 pure strategies: some best response is pure. ``strategy`` needs the other role's six information sets
    only, and so has the answer ``role``'s.
    """
    keys = [f"{card}|{history}" for history in (("", "kb") if role == 0 else ("k", "b")) for card in CARDS]
    best: tuple[Fraction, Strategy] | None = None
    for choice in product((Fraction(0), Fraction(1)), repeat=len(keys)):
        mine = dict(zip(keys, choice, strict=True))
        won = value(mine, strategy) if role == 0 else -value(strategy, mine)
        if best is None or won > best[0]:
            best = won, mine
    assert best is not None
    return best


def exploitability(strategy: Strategy) -> Fraction:
    """Chips a hand that a best responder wins from ``strategy``, each in both roles equally often: 0 at equilibrium."""
    return (best_response(strategy, 0)[0] + best_response(strategy, 1)[0]) / 2


def _value(state: KuhnPokerState, strategies: tuple[Strategy, Strategy]) -> Fraction:
    if state.returns is not None:
        return Fraction(state.returns[0])
    moves = moves_of(strategies[state.player], state)
    return sum((share * _value(state._after(move), strategies) for move, share in moves.items()), Fraction(0))
