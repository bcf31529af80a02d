"""Results of a checkpoint's matches, per opponent and role, with intervals. Torch-free.

``summary.json`` holds the rows under ``matches``: opponent, role, n, and

- ``win``, ``draw``, ``loss``: shares of the matches, each {value, low, high} with Wilson's 95 % interval, which assumes
  independent matches (several samples of one deal of cards are not quite independent). A match that ends with an
  invalid move is lost by the player who made it;
- ``invalid``: share lost by an invalid move of the model; ``forfeited``: share won by one of the opponent;
- ``mean_return``: in the game's points, with the bootstrap interval; ``best_return``: the highest possible against this
  opponent (exact; null where unknown).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_train.evaluation.report.statistics import Estimate, bootstrap_mean, wilson_interval
from grpo_train.games import GAMES
from grpo_train.games.best import best_return

OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "win": ("won", "forfeited"),
    "draw": ("drawn",),
    "loss": ("lost", "invalid"),
    "invalid": ("invalid",),
    "forfeited": ("forfeited",),
}
"""Verdict reasons counted for each share."""


def match_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per opponent and role, sorted; judged rows that are not matches are skipped."""
    cells: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "opponent" in row["facts"]:
            game, opponent, role = (row["facts"][name] for name in ("game", "opponent", "role"))
            cells.setdefault((game, opponent, GAMES[game].roles.index(role)), []).append(row)
    table = []
    for (game, opponent, role), matches in sorted(cells.items(), key=lambda cell: cell[0]):
        reasons = [row["reason"] for row in matches]
        best = best_return(game, opponent, 1 if role else 0)
        table.append(
            {
                "opponent": opponent,
                "role": GAMES[game].roles[role],
                "n": len(matches),
                **{name: asdict(_share(reasons, counted)) for name, counted in OUTCOMES.items()},
                "mean_return": asdict(bootstrap_mean([row["score"] for row in matches])),
                "best_return": None if best is None else float(best),
            }
        )
    return table


def match_lines(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table as text: "random as X: won 0.79 [0.69, 0.87]  drawn 0.05  lost 0.16 (invalid 0.10 …)  n 100"."""
    return [
        f"{row['opponent']} as {row['role']}: won {row['win']['value']:.2f} [{row['win']['low']:.2f}, "
        f"{row['win']['high']:.2f}]  drawn {row['draw']['value']:.2f}  lost {row['loss']['value']:.2f} "
        f"(invalid {row['invalid']['value']:.2f} [{row['invalid']['low']:.2f}, {row['invalid']['high']:.2f}])  "
        f"n {row['n']}"
        for row in table
    ]


def _share(reasons: Sequence[str], counted: Sequence[str]) -> Estimate:
    found = sum(reason in counted for reason in reasons)
    return Estimate(found / len(reasons), *wilson_interval(found, len(reasons)))
