"""Games: exactly known values of tic-tac-toe, Kuhn poker and negotiation."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from itertools import product

import pytest

from grpo_train.games import GAMES, OPPONENTS, Match, Move, State
from grpo_train.games import kuhn_poker as kuhn
from grpo_train.games import tictactoe as ttt
from grpo_train.games.negotiation import MAX_OFFERS, Negotiation, NegotiationState
from grpo_train.games.opponents import uniform
from tests.support.games import reachable

Policy = Callable[[State], Mapping[Move, Fraction]]


# -------------------------------------------------------------------------------------------------------- tic-tac-toe


def outcomes(x: Policy, o: Policy) -> dict[float, Fraction]:
    """Exact probabilities that X wins (1), loses (-1) or draws (0)."""

    @cache
    def of(state: State) -> tuple[Fraction, Fraction, Fraction]:
        if state.returns is not None:
            won = state.returns[0]
            return Fraction(won == 1), Fraction(won == 0), Fraction(won == -1)
        policy = (x, o)[state.player](state)
        after = [(share, of(state.play(move))) for move, share in policy.items()]
        win, draw, loss = (sum((share * each[k] for share, each in after), Fraction(0)) for k in range(3))
        return win, draw, loss

    return dict(zip((1.0, 0.0, -1.0), of(ttt.TicTacToeState()), strict=True))


def test_positions_of_tictactoe() -> None:
    positions = reachable([ttt.TicTacToeState()])
    assert len(positions) == 5478
    ends = [state.returns for state in positions if state.returns]
    assert (len(ends), ends.count((1, -1)), ends.count((-1, 1)), ends.count((0, 0))) == (958, 626, 316, 16)


def test_games_of_tictactoe() -> None:
    @cache
    def count(state: State) -> tuple[int, int, int]:
        if state.returns:
            return int(state.returns[0] == 1), int(state.returns[0] == -1), int(state.returns[0] == 0)
        x, o, draw = (sum(each) for each in zip(*(count(state.play(m)) for m in state.legal_moves()), strict=True))
        return x, o, draw

    assert count(ttt.TicTacToeState()) == (131_184, 77_904, 46_080)  # 255,168 in all


def test_tictactoe_is_a_draw() -> None:
    assert ttt.position_value(ttt.TicTacToeState()) == 0
    assert outcomes(ttt.minimax, ttt.minimax) == {1.0: 0, 0.0: 1, -1.0: 0}


def test_random_against_random() -> None:
    exact = outcomes(uniform, uniform)
    assert exact == {1.0: Fraction(737, 1260), -1.0: Fraction(121, 420), 0.0: Fraction(8, 63)}
    assert [round(100 * float(exact[k]), 2) for k in (1, -1, 0)] == [58.49, 28.81, 12.70]


def test_minimax_against_random() -> None:
    as_x, as_o = outcomes(ttt.minimax, uniform), outcomes(uniform, ttt.minimax)
    assert round(100 * float(as_x[1.0]), 2) == 96.78
    assert round(100 * float(as_o[-1.0]), 2) == 77.75
    assert as_x[-1.0] == as_o[1.0] == 0


def test_minimax_keeps_all_optimal_moves() -> None:
    assert ttt.minimax(ttt.TicTacToeState()) == {str(cell): Fraction(1, 9) for cell in range(1, 10)}
    assert ttt.minimax(ttt.TicTacToeState("X........")) == {"5": 1}  # only the center draws against a corner
    assert ttt.minimax(ttt.TicTacToeState("XX.OO....")) == {"3": 1}
    lost = ttt.TicTacToeState("XO.X.....")  # O to move: 7 loses, too
    assert (ttt.position_value(lost), len(ttt.minimax(lost))) == (1, 6)


# --------------------------------------------------------------------------------------------------------------- Kuhn


def exploitability(strategy: kuhn.Strategy) -> Fraction:
    """Chips per hand that a best responder wins from ``strategy``, averaged over roles; 0 at equilibrium."""
    return (kuhn.best_response(strategy, 0)[0] + kuhn.best_response(strategy, 1)[0]) / 2


KUHN_GAMES = {
    ("check", "check"): 1, ("bet", "fold"): None, ("bet", "call"): 2,
    ("check", "bet", "fold"): None, ("check", "bet", "call"): 2,
}  # fmt: skip


def test_hands_of_kuhn_poker() -> None:
    for deal in kuhn.KuhnPoker().deals():
        ends = {state.history: state.returns for state in reachable([deal]) if isinstance(state, kuhn.KuhnPokerState)}
        over = {history: returns for history, returns in ends.items() if returns}
        sign = 1 if deal.cards in {("K", "Q"), ("K", "J"), ("Q", "J")} else -1
        fold = {("bet", "fold"): 1, ("check", "bet", "fold"): -1}
        assert {history: first for history, (first, _) in over.items()} == {
            history: fold[history] if chips is None else sign * chips for history, chips in KUHN_GAMES.items()
        }
        assert all(first == -second for first, second in over.values())


def test_kuhn_poker_has_twelve_information_sets() -> None:
    states = [state for state in reachable(kuhn.KuhnPoker().deals()) if not state.is_over]
    assert len(states) == 24  # each information set has two deals
    names = {state.information_set for state in states if isinstance(state, kuhn.KuhnPokerState)}
    assert names == set(kuhn.equilibrium())
    assert len(names) == 12


@pytest.mark.parametrize("bluff", [Fraction(0), Fraction(1, 7), Fraction(1, 6), Fraction(1, 3)])
def test_equilibria_are_not_exploitable(bluff: Fraction) -> None:
    strategy = kuhn.equilibrium(bluff)
    assert kuhn.average_win(strategy, strategy) == Fraction(-1, 18)
    assert kuhn.best_response(strategy, 0)[0] == Fraction(-1, 18)
    assert kuhn.best_response(strategy, 1)[0] == Fraction(1, 18)
    assert exploitability(strategy) == 0


def test_other_strategies_are_exploitable() -> None:
    for bluff in (Fraction(-1, 100), Fraction(34, 100)):
        with pytest.raises(ValueError, match="it must be in"):
            kuhn.equilibrium(bluff)
    strategy = kuhn.equilibrium()
    for key, likely in strategy.items():
        # A change in one information set only; the first player's bluff has a price, too.
        moved = {**strategy, key: (likely + (1 if likely < Fraction(1, 2) else 0)) / 2}
        assert exploitability(moved) > 0, key


def test_best_response_beats_the_equilibrium() -> None:
    half = dict.fromkeys(kuhn.equilibrium(), Fraction(1, 2))
    won, answer = kuhn.best_response(half, 0)
    assert kuhn.average_win(answer, half) == won > kuhn.average_win(kuhn.equilibrium(), half)
    lost, reply = kuhn.best_response(half, 1)
    assert -kuhn.average_win(half, reply) == lost > -kuhn.average_win(half, kuhn.equilibrium())
    assert exploitability(half) == (won + lost) / 2
    assert (set(answer) | set(reply), set(answer) & set(reply)) == (set(half), set())


def test_best_response_to_random_by_hand() -> None:
    """Against one half everywhere: fold the Jack, call with Queen and King, always bet after a check."""
    half = dict.fromkeys(kuhn.equilibrium(), Fraction(1, 2))
    won, answer = kuhn.best_response(half, 1)
    assert answer == {"J|k": 1, "Q|k": 1, "K|k": 1, "J|b": 0, "Q|b": 1, "K|b": 1}
    assert won == Fraction(5, 12)


# -------------------------------------------------------------------------------------------------------- negotiation


def test_negotiation_deals() -> None:
    for deal in Negotiation().deals():
        assert all(1 <= count <= 3 for count in deal.pool)
        assert deal.worth(deal.pool, 0) == deal.worth(deal.pool, 1) == 10
        kinds = list(zip(*deal.values, strict=True))
        assert all(max(kind) > 0 for kind in kinds)
        assert any(min(kind) > 0 for kind in kinds)
    other = {(deal.pool, deal.values[::-1]) for deal in Negotiation().deals()}
    assert other == {(deal.pool, deal.values) for deal in Negotiation().deals()}  # symmetric in the roles


DEAL = NegotiationState((2, 3), ((5, 0), (2, 2)))


def test_negotiation_by_hand() -> None:
    assert DEAL.legal_moves() == tuple(f"{hats},{books}" for hats, books in product(range(3), range(4)))
    offered = DEAL.play("2,1")  # the first player keeps 2 hats and 1 book, the other gets 2 books
    assert offered.legal_moves()[-2:] == ("accept", "leave")
    assert offered.play("accept").returns == (1.0, 0.4)
    assert offered.play("leave").returns == (0.0, 0.0)
    countered = offered.play("0,3")  # keeps all books
    assert countered.play("accept").returns == (1.0, 0.6)  # a Pareto improvement: not zero-sum
    assert countered.observation("compact") == "2,3|5,0|2,1|2,0\n1:"
    assert offered.observation("compact") == "2,3|2,2|0,2\n2:"
    text = countered.observation()
    assert "The pool: 2 hats and 3 books. To you, a hat is worth 5 and a book is worth 0." in text
    assert "You offered: 2 hats and 1 book for you, 0 hats and 2 books for the other player." in text
    assert "The other player offered: 2 hats and 0 books for you, 0 hats and 3 books for the other player." in text


def test_offers_are_limited() -> None:
    state: State = DEAL
    for _ in range(MAX_OFFERS):
        state = state.play("1,1")
    assert state.legal_moves() == ("accept", "leave")
    assert state.play("accept").returns == (0.5, 0.6)
    assert "After 5 offers the next player can only accept or leave." in state.observation()


def test_no_deal_exceeds_the_pool() -> None:
    for deal in Negotiation().deals():
        # The maximum total gives each item to the side that values it more.
        most = sum(count * max(kind) for count, kind in zip(deal.pool, zip(*deal.values, strict=True), strict=True))
        returns = [deal.play(offer).play("accept").returns for offer in deal.legal_moves()]
        totals = [sum(each) for each in returns if each]
        assert max(totals) == pytest.approx(most / 10)
        assert all(0 <= part <= 1 for each in returns if each for part in each)


def test_fair_players_agree_on_half_or_more() -> None:
    fair = OPPONENTS["negotiation"]["fair"]
    agreed = 0
    for seed in range(500):
        match, draw = Match(GAMES["negotiation"], GAMES["negotiation"].new(seed)), random.Random(seed)
        while not match.ending:
            match = match.play(fair.choose(match.state, draw))
        assert match.returns is not None
        agreed += match.moves[-1] == "accept"
        assert min(match.returns) >= 0.5 or match.moves[-1] == "leave"
    assert agreed > 300
    offered = DEAL.play("1,1")  # 1 hat and 2 books: 6 of 10
    assert fair.policy(offered) == {"accept": 1}
    assert fair.policy(DEAL) == {"1,0": 1}  # one hat is worth half, and is the fewest items
