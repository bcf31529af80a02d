"""The process in which reasoning-gym makes problems and scores answers: a script that tasks/reasoning_gym.py starts.

Problems are made here, too, so that they do not depend on the hash seed of the asking process, and so that
matplotlib, sympy and the rest of what reasoning-gym imports stay out of it. Some of its datasets hand an answer to
``eval`` by way of sympy; from the first answer on this process writes no file and starts no program. That stops what a
model writes by accident, not an attack: train on code in the sandbox.

Asked {"do": "names"}, it answers the datasets; {"do": "entry", "dataset", "seed", "size", "index"}, a [question,
answer]; with "do": "score" and the "answer" besides, the dataset's score.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

_FORBIDDEN = (
    "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "webbrowser.", "urllib.", "ftplib.", "signal.",
)  # fmt: skip
_HARMLESS = {"os.listdir", "os.scandir", "os.walk", "os.fwalk"}


def prepare() -> Callable[[Any], Any]:
    """Import reasoning-gym; returns what answers a question."""
    import warnings

    warnings.simplefilter("ignore")
    from reasoning_gym import create_dataset
    from reasoning_gym.factory import DATASETS

    locked = False

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and any(letter in str(arguments[1] or "r") for letter in "wax+")
        if locked and (writes or (event.startswith(_FORBIDDEN) and event not in _HARMLESS)):
            raise PermissionError(f"an answer tried {event}")

    sys.addaudithook(guard)

    @lru_cache(maxsize=8)
    def dataset(name: str, seed: int, size: int) -> Any:
        return create_dataset(name, seed=seed, size=size)

    @lru_cache(maxsize=1024)
    def entry(name: str, seed: int, size: int, index: int) -> dict[str, Any]:
        made: dict[str, Any] = dataset(name, seed, size)[index]
        return made

    def answer(asked: Any) -> Any:
        nonlocal locked
        if asked["do"] == "names":
            return sorted(DATASETS)
        which = asked["dataset"], asked["seed"], asked["size"]
        made = entry(*which, asked["index"])
        if asked["do"] == "entry":
            return [made["question"], "" if made["answer"] is None else str(made["answer"])]
        locked = True
        try:
            return float(dataset(*which).score_answer(asked["answer"], made))
        finally:
            locked = False

    return answer


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])  # was this directory, whose files are no top-level modules
    from grpo_train.rewards.helpers.serve import serve

    serve(prepare)
