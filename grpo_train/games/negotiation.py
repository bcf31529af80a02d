"""Negotiation over a pool of two kinds of items with private, different values.

Lewis et al. 2017, "Deal or No Deal?" (arXiv 1706.05125, §2.1), with two kinds of items instead of three and offers
instead of dialogue, so that every move can be checked:

- The pool has 1 to 3 hats and 1 to 3 books. Each side values a hat and a book at whole numbers of points from 0; the
  whole pool is worth 10 to each side. Each kind has value to at least one side, and at least one kind to both.
- The first side offers a division. Then each side in turn accepts the other's offer, leaves, or makes another offer.
  After five offers, the sixth turn can only accept or leave.
- A deal gives each side the value of its share over 10; without a deal both get 0. The game is not zero-sum: where the
  values differ, some deals are better for both.
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
"""Hats and books: counts, or the value of one of each."""

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
    """A deal of items and values, and the moves since."""

    pool: Items
    values: tuple[Items, Items]
    """Value of one hat and one book to each role."""
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
        """Share of a role in the offer of a turn (from 0)."""
        hats, books = _items_of(self.history[turn])
        return (hats, books) if turn % 2 == role else (self.pool[0] - hats, self.pool[1] - books)

    def worth(self, share: Items, role: Role) -> int:
        """Value of a share to a role, in points."""
        return _dot(share, self.values[role])

    def offers(self) -> tuple[Move, ...]:
        """Legal offers of the player to move."""
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
        if style == "compact":  # the pool, its values and each offer, from the player's side
            fields = [self.pool, mine, *shares]
            return "|".join(f"{hats},{books}" for hats, books in fields) + f"\n{self.player + 1}:"
        turns = [
            f"{'You' if turn % 2 == self.player else 'The other player'} offered: {_phrase(share)} for you, "
            f"{_phrase((self.pool[0] - share[0], self.pool[1] - share[1]))} for the other player."
            for turn, share in enumerate(shares)
        ]
        situation = (
            f"You are the {ROLES[self.player]} player. The pool: {_phrase(self.pool)}. To you, a hat is worth "
            f"{mine[0]} and a book is worth {mine[1]}."
        )
        return full_text(RULES, "\n".join([situation, *turns]), self.legal_moves())

    def _after(self, move: Move) -> NegotiationState:
        return NegotiationState(self.pool, self.values, (*self.history, move))


class Negotiation(Game):
    """See the module docstring. Returns are in [0, 1]."""

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
    """Opponent that wants half of the points. It accepts any offer worth half, otherwise offers to keep the fewest
    items worth half (ties equally likely), and leaves when it has no such offer."""
    role = state.player
    if state.history and 2 * state.worth(state.share(len(state.history) - 1, role), role) >= WORTH:
        return {ACCEPT: Fraction(1)}
    enough = [offer for offer in state.offers() if 2 * state.worth(_items_of(offer), role) >= WORTH]
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
    """Whether each kind has value to at least one side, and at least one kind to both."""
    return all(a or b for a, b in zip(one, two, strict=True)) and any(a and b for a, b in zip(one, two, strict=True))


def _dot(one: Items, two: Items) -> int:
    return one[0] * two[0] + one[1] * two[1]


def _items_of(offer: Move) -> Items:
    hats, books = offer.split(",")
    return int(hats), int(books)


def _phrase(items: Items) -> str:
    return " and ".join(f"{count} {kind}{'' if count == 1 else 's'}" for count, kind in zip(items, KINDS, strict=True))
