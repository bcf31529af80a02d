"""Opponents of a checkpoint where its task is a game: the game's own players, and checkpoints. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from grpo_train.config.schema import Config
from grpo_train.games import OPPONENTS, Role
from grpo_train.tasks import TaskError
from grpo_train.tasks.shared.self_play import SelfPlayTask


def opponents_of(task: SelfPlayTask, config: Config) -> list[str]:
    """``eval.opponents``, or all players of the game. Raises TaskError for a name that is neither player nor path."""
    players = list(OPPONENTS[task.game.name])
    for name in config.eval.opponents:
        if name not in players and not _is_path(name):
            raise TaskError(
                f"eval.opponents: '{name}' is neither one of {', '.join(players)} nor a checkpoint directory "
                "(training_runs/RUN/training_state/step_N)"
            )
    return list(dict.fromkeys(config.eval.opponents)) or players


def pairing(index: int, opponents: Sequence[str]) -> tuple[str, Role]:
    """Opponent and the model's role in match ``index``: roles alternate, and each pair of indices changes opponent."""
    role: Role = 1 if index % 2 else 0
    return opponents[index // 2 % len(opponents)], role


def opponent_path(name: str, root: Path) -> Path:
    """Directory of an opponent that is a checkpoint: relative to the root, or anywhere."""
    inside = root / name
    return inside if inside.is_dir() else Path(name).expanduser()


def opponent_checkpoints(config: Config, root: Path) -> list[Path]:
    """Directories of the checkpoints among ``eval.opponents``."""
    return [opponent_path(name, root) for name in config.eval.opponents if _is_path(name)]


def _is_path(name: str) -> bool:
    return os.sep in name
