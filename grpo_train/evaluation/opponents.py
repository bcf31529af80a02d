"""Whom a checkpoint plays against where its task is a game: the game's own players, and checkpoints. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from grpo_train.config.schema import Config
from grpo_train.games import OPPONENTS, Role
from grpo_train.tasks import TaskError
from grpo_train.tasks.shared.self_play import SelfPlayTask


def opponents_of(task: SelfPlayTask, config: Config) -> list[str]:
    """``eval.opponents``, else all that the game has. Raises TaskError for a name that is neither one nor a path."""
    own = [opponent.name for opponent in OPPONENTS[task.game.name]]
    for name in config.eval.opponents:
        if name not in own and not _is_place(name):
            raise TaskError(
                f"eval.opponents: '{name}' is neither one of {', '.join(own)} nor a checkpoint's directory "
                "(training_runs/RUN/training_state/step_N)"
            )
    return list(dict.fromkeys(config.eval.opponents)) or own


def pairing(index: int, opponents: Sequence[str]) -> tuple[str, Role]:
    """Against whom and in which role the model plays the match of this number."""
    role: Role = 1 if index % 2 else 0
    return opponents[index // 2 % len(opponents)], role


def place_of(name: str, root: Path) -> Path:
    """A checkpoint's directory: in the root, or anywhere."""
    inside = root / name
    return inside if inside.is_dir() else Path(name).expanduser()


def checkpoints_of(config: Config, root: Path) -> list[Path]:
    """The directories among ``eval.opponents``."""
    return [place_of(name, root) for name in config.eval.opponents if _is_place(name)]


def _is_place(name: str) -> bool:
    return os.sep in name
