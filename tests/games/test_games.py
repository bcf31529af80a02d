"""Games: hidden information, how moves are read, and the end of every match."""

from __future__ import annotations

import random
import subprocess
import sys
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.games import GAMES, OPPONENTS, Match, MatchRules, State
from grpo_train.games import kuhn_poker as kuhn
from grpo_train.games.base import answer_of
from grpo_train.games.negotiation import NegotiationState, _allowed
from grpo_train.tiny.tokenizer import make_tokenizer
from tests.support.engine import REPOSITORY
from tests.support.games import reachable

EVERY_GAME = pytest.mark.parametrize("name", list(GAMES))


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


@pytest.mark.parametrize(("one", "two", "expected"), [
    ((1, 0), (2, 3), True),
    ((1, 0), (2, 0), False),
    ((5, 0), (0, 2), False),
])  # fmt: skip
def test_a_negotiation_is_about_kinds_that_somebody_wants(
    one: tuple[int, int], two: tuple[int, int], expected: bool
) -> None:
    """Each kind has value to a side, one to both."""
    assert _allowed(one, two) is expected
