"""A negotiation over a pool of two kinds of things, which the two sides value differently and in private.

Lewis et al. 2017, "Deal or No Deal?" (arXiv 1706.05125, §2.1), with two kinds instead of three and offers instead of
talk, so that every move can be checked:

- The pool has 1 to 3 hats and 1 to 3 books. A side values a hat at so many points and a book at so many, whole numbers
  from 0; the whole pool is worth 10 to either. Each kind is worth something to somebody, and one kind at least to both.
- The first side offers a division. Then in turn each accepts the offer of the other, leaves, or offers another one.
  After five offers the sixth turn can only accept or leave.
- A deal gives each side what its share is worth to it, over 10; without a deal both get 0. It is not zero-sum: where
  the values differ there are deals that are better for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product

from grpo_train.games.base import Game, Move, Returns, Role, State, Style, full_text

Items = tuple[int, int]
"""Hats and books: how many, or what one of each is worth."""

ROLES = ("first", "second")
KINDS = ("hat", "book")
MAX_ITEMS = 3
WORTH = 10
MAX_OFFERS = 5
ACCEPT, LEAVE = "accept", "leave"
RULES = (
    "You are negotiating how to divide some hats and books with another player. The whole pool is worth 10 points to "
    "each of you, but you value hats and books differently, and neither knows the values of the other. The first "
    "player makes an offer. Then you take turns to accept the last offer, to leave, or to make another offer. After "
    f"{MAX_OFFERS} offers the next player can only accept or leave. When an offer is accepted, each player scores the "
    "points that their share is worth to them. When somebody leaves, both score 0. A move is accept, leave, or an "
    "offer: the number of hats and the number of books that you would keep yourself, with a comma between them. The "
    "other player would get the rest."
)


@dataclass(frozen=True)
class NegotiationState(State):
    """A deal of things and values, and the moves since."""

    pool: Items
    values: tuple[Items, Items]
    """By role, what one hat and one book is worth to it."""
    history: tuple[Move, ...] = ()

    @property
    def player(self) -> Role:
        return 1 if len(self.history) % 2 else 0

    @property
    def returns(self) -> Returns | None:
        if self.history[-1:] == (LEAVE,):
            return 0.0, 0.0
        if self.history[-1:] != (ACCEPT,):
            return None
        turn = len(self.history) - 2
        return self.worth(self.share(turn, 0), 0) / WORTH, self.worth(self.share(turn, 1), 1) / WORTH

    def share(self, turn: int, role: Role) -> Items:
        """What the offer of a turn (from 0) gives to a role."""
        hats, books = _items_of(self.history[turn])
        return (hats, books) if turn % 2 == role else (self.pool[0] - hats, self.pool[1] - books)

    def worth(self, share: Items, role: Role) -> int:
        """Points that a share is worth to a role."""
        return _dot(share, self.values[role])

    def offers(self) -> tuple[Move, ...]:
        """The offers that the player to move may make."""
        if self.is_over or len(self.history) >= MAX_OFFERS:
            return ()
        hats, books = self.pool
        return tuple(f"{keep[0]},{keep[1]}" for keep in product(range(hats + 1), range(books + 1)))

    def legal_moves(self) -> tuple[Move, ...]:
        if self.is_over:
            return ()
        return (*self.offers(), ACCEPT, LEAVE) if self.history else self.offers()

    def observation(self, style: Style = "full") -> str:
        mine = self.values[self.player]
        shares = [self.share(turn, self.player) for turn in range(len(self.history))]
        if style == "compact":  # the pool, what it is worth to me, what each offer gives me
            fields = [self.pool, mine, *shares]
            return "|".join(f"{hats},{books}" for hats, books in fields) + f"\n{self.player + 1}:"
        turns = [
            f"{'You' if turn % 2 == self.player else 'The other player'} offered: {_words(share)} for you, "
            f"{_words((self.pool[0] - share[0], self.pool[1] - share[1]))} for the other player."
            for turn, share in enumerate(shares)
        ]
        situation = (
            f"You are the {ROLES[self.player]} player. The pool: {_words(self.pool)}. To you, a hat is worth "
            f"{mine[0]} and a book is worth {mine[1]}."
        )
        return full_text(RULES, "\n".join([situation, *turns]), self.legal_moves())

    def _after(self, move: Move) -> NegotiationState:
        return NegotiationState(self.pool, self.values, (*self.history, move))


class Negotiation(Game):
    """See the module's text. Returns are 0 to 1."""

    name = "negotiation"
    roles = ROLES
    rules = RULES

    def deals(self) -> tuple[NegotiationState, ...]:
        return _deals()

    def read(self, answer: str) -> Move | None:
        if answer in (ACCEPT, ACCEPT[0]):
            return ACCEPT
        if answer in (LEAVE, LEAVE[0]):
            return LEAVE
        offer = re.fullmatch(r"([0-9])\s*,\s*([0-9])", answer)
        return f"{offer[1]},{offer[2]}" if offer else None


def fair(state: NegotiationState) -> Mapping[Move, Fraction]:
    """Wants half of its points, and no more: accepts any offer worth that, else offers what gives away the most things
    but leaves it half (each such offer equally likely), and leaves when it can offer no more."""
    me = state.player
    if state.history and 2 * state.worth(state.share(len(state.history) - 1, me), me) >= WORTH:
        return {ACCEPT: Fraction(1)}
    enough = [offer for offer in state.offers() if 2 * state.worth(_items_of(offer), me) >= WORTH]
    if not enough:
        return {LEAVE: Fraction(1)}
    fewest = min(sum(_items_of(offer)) for offer in enough)
    best = [offer for offer in enough if sum(_items_of(offer)) == fewest]
    return {offer: Fraction(1, len(best)) for offer in best}


@cache
def _deals() -> tuple[NegotiationState, ...]:
    found = []
    counts, points = range(1, MAX_ITEMS + 1), range(WORTH + 1)
    for pool in product(counts, counts):
        values = [each for each in product(points, points) if _dot(pool, each) == WORTH]
        found += [NegotiationState(pool, (one, two)) for one, two in product(values, values) if _allowed(one, two)]
    return tuple(found)


def _allowed(one: Items, two: Items) -> bool:
    """Each kind is worth something to somebody, and one kind at least to both."""
    return all(a or b for a, b in zip(one, two, strict=True)) and any(a and b for a, b in zip(one, two, strict=True))


def _dot(one: Items, two: Items) -> int:
    return one[0] * two[0] + one[1] * two[1]


def _items_of(offer: Move) -> Items:
    hats, books = offer.split(",")
    return int(hats), int(books)


def _words(items: Items) -> str:
    return " and ".join(f"{count} {kind}{'' if count == 1 else 's'}" for count, kind in zip(items, KINDS, strict=True))
