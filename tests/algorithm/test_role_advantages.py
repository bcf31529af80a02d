"""Role-conditioned advantages: known series, symmetry, resume, independence of ranks."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.algorithm.role_advantages import RoleBaselines

GAMES = ("tictactoe", "kuhn_poker")
RETURNS = st.floats(-2, 2, allow_nan=False)
FINISHED = st.lists(
    st.tuples(st.sampled_from(GAMES), st.fixed_dictionaries({"first": RETURNS, "second": RETURNS})), max_size=40
)
Finished = list[tuple[str, dict[str, float]]]


def test_constant_return_is_approached_geometrically() -> None:
    baselines = RoleBaselines()
    for n in range(200):
        expected = 0.7 * (1 - 0.95**n)
        assert baselines.baseline("kuhn_poker", "first") == pytest.approx(expected, abs=1e-12)
        (advantage,) = baselines.advantages([("kuhn_poker", {"first": 0.7})])
        assert advantage["first"] == pytest.approx(0.7 - expected, abs=1e-12)


def test_baseline_is_read_before_the_update() -> None:
    baselines = RoleBaselines(decay=0.5)
    games = [("g", {"X": 1.0, "O": -1.0}), ("g", {"X": 1.0, "O": -1.0}), ("g", {"X": -1.0, "O": 1.0})]
    assert baselines.advantages(games) == [{"X": 1, "O": -1}, {"X": 0.5, "O": -0.5}, {"X": -1.75, "O": 1.75}]
    assert baselines.state_dict() == {"baselines": [["g", "O", 0.125], ["g", "X", -0.125]]}


@given(FINISHED)
def test_games_and_roles_are_independent(games: Finished) -> None:
    together = RoleBaselines()
    advantages = together.advantages(games)
    for name in GAMES:
        for role in ("first", "second"):
            alone = RoleBaselines()
            mine = [(game, {role: returns[role]}) for game, returns in games if game == name]
            expected = [each[role] for each, (game, _) in zip(advantages, games, strict=True) if game == name]
            assert [each[role] for each in alone.advantages(mine)] == expected
            assert alone.baseline(name, role) == together.baseline(name, role)


@given(st.lists(RETURNS, max_size=60))
def test_zero_sum_returns_have_opposite_baselines(values: list[float]) -> None:
    baselines = RoleBaselines()
    for advantage in baselines.advantages([("g", {"X": value, "O": -value}) for value in values]):
        assert advantage["X"] == -advantage["O"]
    assert baselines.baseline("g", "X") == -baselines.baseline("g", "O")


@given(FINISHED, st.integers(0, 40))
def test_resume_changes_nothing(games: Finished, cut: int) -> None:
    whole = RoleBaselines()
    expected = whole.advantages(games)
    before = RoleBaselines()
    first = before.advantages(games[:cut])
    after = RoleBaselines()
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert first + after.advantages(games[cut:]) == expected
    assert after.state_dict() == whole.state_dict()


@given(FINISHED, st.integers(1, 5))
def test_distribution_over_ranks_does_not_matter(games: Finished, ranks: int) -> None:
    played = [[(index, game) for index, game in enumerate(games) if index % ranks == rank] for rank in range(ranks)]
    gathered = sorted(pair for shard in reversed(played) for pair in [(index, game) for index, game in shard])
    one, many = RoleBaselines(), RoleBaselines()
    assert many.advantages([game for _, game in gathered]) == one.advantages(games)
    assert many.state_dict() == one.state_dict()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_return_leaves_the_baselines(bad: float) -> None:
    baselines = RoleBaselines()
    baselines.advantages([("g", {"X": 1.0})])
    before = baselines.state_dict()
    with pytest.raises(ValueError, match=r"game 1 \(g\): the return of O is"):
        baselines.advantages([("g", {"X": 1.0}), ("g", {"X": 1.0, "O": bad})])
    assert baselines.state_dict() == before


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_decay_out_of_range_is_an_error(decay: float) -> None:
    with pytest.raises(ValueError, match="decay is"):
        RoleBaselines(decay)
