"""Games: exactly known values, hidden information, and the end of every match."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.games import GAMES, OPPONENTS, Match, MatchRules, Move, State
from grpo_train.games import kuhn_poker as kuhn
from grpo_train.games import tictactoe as ttt
from grpo_train.games.base import answer_of
from grpo_train.games.negotiation import MAX_OFFERS, Negotiation, NegotiationState
from grpo_train.games.opponents import uniform
from grpo_train.tiny.tokenizer import make_tokenizer
from tests.support.engine import REPOSITORY

Policy = Callable[[State], Mapping[Move, Fraction]]
EVERY_GAME = pytest.mark.parametrize("name", list(GAMES))


def reachable(starts: Iterable[State]) -> list[State]:
    """States reachable from ``starts``, each once."""
    found = dict.fromkeys(starts)
    frontier = list(found)
    while frontier:
        after = dict.fromkeys(state.play(move) for state in frontier for move in state.legal_moves())
        frontier = [state for state in after if state not in found]
        found.update(after)
    return list(found)


def played(name: str, seed: int) -> Match:
    """A match between random players."""
    match, draw = Match(GAMES[name], GAMES[name].new(seed)), random.Random(seed)
    while not match.ending:
        match = match.play(OPPONENTS[name]["random"].choose(match.state, draw))
    return match


@cache
def some_states(name: str) -> list[State]:
    """All states of a game; for the negotiation, which has too many, the states of random matches."""
    if name != "negotiation":
        return reachable(GAMES[name].deals())
    states: list[State] = []
    for seed in range(200):
        state = GAMES[name].new(seed)
        states.append(state)
        for move in played(name, seed).moves:
            state = state.play(move)
            states.append(state)
    return states


# --------------------------------------------------------------------------------------------------------- every game


@EVERY_GAME
def test_seeds_are_deterministic_and_isolated(name: str) -> None:
    random.seed(1)
    before = random.getstate()
    assert [GAMES[name].new(seed) for seed in range(50)] == [GAMES[name].new(seed) for seed in range(50)]
    assert played(name, 7) == played(name, 7)
    assert random.getstate() == before


def test_deals_are_stable() -> None:
    # A run resumed with another Python version must get the same games.
    hands = ["".join(GAMES["kuhn_poker"].new(seed).cards) for seed in range(6)]
    assert hands == ["QK", "QK", "JK", "QK", "QJ", "QK"]
    assert GAMES["negotiation"].new(0) == NegotiationState((2, 2), ((0, 5), (4, 1)))


@pytest.mark.parametrize("name", ["kuhn_poker", "negotiation"])
def test_deals_are_uniform(name: str) -> None:
    deals = GAMES[name].deals()
    assert len(set(deals)) == len(deals)
    count = dict.fromkeys(deals, 0)
    games = 100 * len(deals)
    for seed in range(games):
        count[GAMES[name].new(seed)] += 1
    chi_square = sum((seen - 100) ** 2 / 100 for seen in count.values())
    freedom = len(deals) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@EVERY_GAME
def test_states_are_consistent(name: str) -> None:
    for state in some_states(name):
        moves = state.legal_moves()
        assert bool(moves) != state.is_over == (state.returns is not None)
        assert len(set(moves)) == len(moves)
        assert "pass" not in moves
        with pytest.raises(ValueError, match="'pass' is not a legal move"):
            state.play("pass")
        for move in moves:
            assert GAMES[name].parse_move(f"<answer>{move}</answer>") == move


@EVERY_GAME
@pytest.mark.parametrize("style", ["compact", "full"])
def test_observations_match_knowledge(name: str, style: str) -> None:
    """An observation shows exactly what the player knows."""
    seen: dict[str, object] = {}
    for state in some_states(name):
        if state.is_over:
            continue
        if isinstance(state, kuhn.KuhnPokerState):
            known: tuple[object, ...] = (state.cards[state.player], state.history)
        elif isinstance(state, NegotiationState):
            known = (state.pool, state.values[state.player], state.history)
        else:
            known = (state,)
        text = state.observation(style)  # type: ignore[arg-type]
        assert seen.setdefault(text, known) == known
        assert seen.setdefault(repr(known), text) == text
        for opponent, player in OPPONENTS[name].items():
            decision = (state.legal_moves(), dict(player.policy(state)))
            assert seen.setdefault(f"{opponent} {known}", decision) == decision


@EVERY_GAME
def test_full_observations_are_complete(name: str) -> None:
    game = GAMES[name]
    for state in some_states(name):
        if not state.is_over:
            text = state.observation("full")
            assert text.startswith(game.rules)
            assert f"You are {'' if name == 'tictactoe' else 'the '}{game.roles[state.player]}" in text
            assert f"Your legal moves: {'; '.join(state.legal_moves())}\n" in text
            assert game.parse_move(text) is None  # repeating the prompt is not a move


def test_compact_observations_are_short_and_distinct() -> None:
    tokenizer = make_tokenizer()
    texts = {name: {s.observation("compact") for s in some_states(name) if not s.is_over} for name in GAMES}
    longest = {name: max(len(tokenizer(text)["input_ids"]) for text in list(texts[name])[:500]) for name in GAMES}
    assert longest["tictactoe"] == 14
    assert longest["kuhn_poker"] == 7
    assert longest["negotiation"] <= 31
    assert not set.intersection(*texts.values())
    assert len(tokenizer("<answer>5</answer>")["input_ids"]) == len(tokenizer("<answer>b</answer>")["input_ids"]) == 3


@EVERY_GAME
def test_opponents_move_legally_with_one_draw(name: str) -> None:
    for opponent in OPPONENTS[name].values():
        draw = random.Random(3)
        for state in some_states(name)[:300]:
            if not state.is_over:
                policy = opponent.policy(state)
                assert set(policy) <= set(state.legal_moves())
                assert sum(policy.values()) == 1
                assert all(share > 0 for share in policy.values())
                expected = random.Random()
                expected.setstate(draw.getstate())
                expected.random()
                assert opponent.choose(state, draw) in policy
                assert draw.getstate() == expected.getstate()


def test_opponents_follow_their_probabilities() -> None:
    state = kuhn.KuhnPokerState(("Q", "J"), ("check", "bet"))
    draw, opponent = random.Random(0), OPPONENTS["kuhn_poker"]["equilibrium"]
    assert opponent.policy(state) == {"fold": Fraction(1, 2), "call": Fraction(1, 2)}
    calls = sum(opponent.choose(state, draw) == "call" for _ in range(4000))
    assert abs(calls - 2000) < 5 * 4000**0.5 / 2


def test_games_need_no_torch() -> None:
    program = "import grpo_train.games, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, timeout=60).returncode == 0


# ------------------------------------------------------------------------------------------------- moves and matches


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>5</answer>", "5"),
        ("</think> <answer> 5\n</answer> trailing", " 5\n"),
        (r"so \boxed{bet}", "bet"),
        (r"<answer>\boxed{bet}</answer>", "bet"),
        (r"\boxed{1} no, <answer>2</answer>", "2"),
        (r"<answer>1</answer> no, \boxed{2}", "2"),
        ("<answer>1</answer> or <answer>2</answer>", "2"),
        ("<answer>1</answer> or <answer>2", None),
        ("<answer>", None),
        ("5</answer>", None),
        ("5", None),
        ("", None),
    ],
)
def test_the_last_answer_counts(completion: str, answer: str | None) -> None:
    assert answer_of(completion) == answer


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("tictactoe", {"5": "5", " 5 ": "5", "0": None, "10": None, "45": None, "": None, "five": None, "٥": None}),
        ("kuhn_poker", {"bet": "bet", "B": "bet", "k": "check", "C": "call", "Fold": "fold", "": None, "raise": None}),
        ("negotiation", {"2,1": "2,1", "2 , 1": "2,1", "9,9": "9,9", "a": "accept", "LEAVE": "leave", "l": "leave",
                         "2": None, "2,1,0": None, "-1,2": None, "": None, "²,1": None}),
    ],
)  # fmt: skip
def test_moves_are_read_strictly(name: str, moves: dict[str, str | None]) -> None:
    for answer, move in moves.items():
        assert GAMES[name].parse_move(f"<answer>{answer}</answer>") == move, answer


@EVERY_GAME
@given(text=st.text() | st.text("<answer>/\\boxed{}19,kb ").map(lambda body: f"<answer>{body}</answer>"))
def test_any_text_continues_or_ends_the_match(name: str, text: str) -> None:
    match = Match(GAMES[name], GAMES[name].new(1)).reply(text)
    if match.offense:
        assert (match.returns, match.moves) == ((-1.5, 0.5), ())
    else:
        assert match.moves == (GAMES[name].parse_move(text),)


def test_offense_ends_the_match() -> None:
    start = Match(GAMES["tictactoe"], GAMES["tictactoe"].new(0))
    first = start.reply("the middle: <answer>5</answer>")
    assert (first.player, first.moves, first.ending, first.returns) == (1, ("5",), None, None)
    taken = first.reply("<answer>5</answer>")
    assert (taken.player, taken.ending, taken.returns) == (1, "illegal", (0.5, -1.5))
    silent = first.reply("<answer>1")
    assert (silent.player, silent.ending, silent.returns) == (1, "unparsable", (0.5, -1.5))
    assert (silent.state, silent.moves) == (first.state, ("5",))
    assert start.reply("").returns == (-1.5, 0.5)
    for over in (taken, silent):
        with pytest.raises(ValueError, match="this match of tictactoe is over"):
            over.reply("")
        with pytest.raises(ValueError, match="this match of tictactoe is over"):
            over.play("1")
    assert Match(GAMES["kuhn_poker"], GAMES["kuhn_poker"].new(0), MatchRules(-3, 0)).play("call").returns == (-3, 0)


def test_too_many_turns_end_the_match() -> None:
    def after(moves: str, rules: MatchRules) -> Match:
        match = Match(GAMES["tictactoe"], GAMES["tictactoe"].new(0), rules)
        for move in moves:
            match = match.play(move)
        return match

    assert after("1425", MatchRules(max_turns=5)).ending is None
    cut = after("14257", MatchRules(max_turns=5))
    assert (cut.ending, cut.returns) == ("too_long", (0.0, 0.0))
    assert after("14257", MatchRules(max_turns=5, unfinished=-0.5)).returns == (-0.5, -0.5)
    won = after("14253", MatchRules(max_turns=5))
    assert (won.ending, won.returns) == ("finished", (1.0, -1.0))


@EVERY_GAME
def test_random_matches_finish(name: str) -> None:
    longest = {"tictactoe": 9, "kuhn_poker": 3, "negotiation": 6}[name]
    lengths = [len(played(name, seed).moves) for seed in range(300)]
    assert max(lengths) <= longest
    assert {played(name, seed).ending for seed in range(50)} == {"finished"}


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
    assert ttt.value(ttt.TicTacToeState()) == 0
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
    assert (ttt.value(lost), len(ttt.minimax(lost))) == (1, 6)


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
    assert kuhn.value(strategy, strategy) == Fraction(-1, 18)
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
    assert kuhn.value(answer, half) == won > kuhn.value(kuhn.equilibrium(), half)
    lost, reply = kuhn.best_response(half, 1)
    assert -kuhn.value(half, reply) == lost > -kuhn.value(half, kuhn.equilibrium())
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
