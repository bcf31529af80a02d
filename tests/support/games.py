"""States of games."""

from __future__ import annotations

from collections.abc import Iterable

from grpo_train.games import State


def reachable(starts: Iterable[State]) -> list[State]:
    """States reachable from ``starts``, each once."""
    found = dict.fromkeys(starts)
    frontier = list(found)
    while frontier:
        after = dict.fromkeys(state.play(move) for state in frontier for move in state.legal_moves())
        frontier = [state for state in after if state not in found]
        found.update(after)
    return list(found)
