"""Highest achievable return against an exactly known opponent, the bound for a model's results."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from grpo_train.games import kuhn_poker
from grpo_train.games.base import Role
from grpo_train.games.kuhn_poker import CARDS, KuhnPoker, KuhnPokerState, Strategy
from grpo_train.games.opponents import OPPONENTS, Opponent
from grpo_train.games.tictactoe import TicTacToe, TicTacToeState


def best_return(game: str, opponent: str, role: Role) -> Fraction | None:
    """Highest average return of ``role`` against an opponent of :data:`~.opponents.OPPONENTS`.

    None where unknown: for any other player, and for the negotiation, where the other side's values are hidden.
    """
    player = OPPONENTS.get(game, {}).get(opponent)
    if player is None:
        return None
    if game == "tictactoe":
        return _tictactoe(TicTacToe().deals()[0], player, role)
    if game == "kuhn_poker":
        return kuhn_poker.best_response(_strategy(player), role)[0]
    return None


@cache
def _tictactoe(state: TicTacToeState, opponent: Opponent, role: Role) -> Fraction:
    """Expectimax: ``role`` takes its best move, the opponent's moves are weighted by their probabilities."""
    if state.returns is not None:
        return Fraction(state.returns[role])
    after = {move: state._after(move) for move in state.legal_moves()}
    if state.player == role:
        return max(_tictactoe(each, opponent, role) for each in after.values())
    shares = opponent.policy(state)
    return sum((share * _tictactoe(after[move], opponent, role) for move, share in shares.items()), Fraction(0))


def _strategy(opponent: Opponent) -> Strategy:
    """Strategy of a Kuhn poker opponent by information set."""
    strategy: dict[str, Fraction] = {}
    frontier: list[KuhnPokerState] = list(KuhnPoker().deals())
    while frontier:
        state = frontier.pop()
        if state.is_over:
            continue
        quiet, chip = state.legal_moves()
        strategy[state.information_set] = opponent.policy(state).get(chip, Fraction(0))
        frontier += [state._after(quiet), state._after(chip)]
    assert len(strategy) == 4 * len(CARDS)
    return strategy
