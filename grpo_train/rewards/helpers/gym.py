"""Helper script for reasoning-gym: generates problems and scores answers.

Problems are generated here so that they do not depend on the hash seed of the parent, and so that reasoning-gym's
imports (matplotlib, sympy, …) stay out of it. Some datasets pass an answer to ``eval`` through sympy; while an answer
is scored, this process cannot write files or start programs. That stops accidents, not attacks: train on code in the
sandbox.

Requests: {"do": "names"} returns the datasets; {"do": "entry", "dataset", "seed", "size", "index"} returns [question,
answer]; {"do": "score", …, "answer"} returns the dataset's score.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_FORBIDDEN = (
    "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "webbrowser.", "urllib.", "ftplib.", "signal.",
)  # fmt: skip
_HARMLESS = {"os.listdir", "os.scandir", "os.walk", "os.fwalk"}


def prepare() -> Callable[[Any], Any]:
    """Import reasoning-gym and return the function that answers requests."""
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
        generated: dict[str, Any] = dataset(name, seed, size)[index]
        return generated

    def answer(request: Any) -> Any:
        nonlocal locked
        if request["do"] == "names":
            return sorted(DATASETS)
        spec = request["dataset"], request["seed"], request["size"]
        problem = entry(*spec, request["index"])
        if request["do"] == "entry":
            return [problem["question"], "" if problem["answer"] is None else str(problem["answer"])]
        locked = True
        try:
            return float(dataset(*spec).score_answer(request["answer"], problem))
        finally:
            locked = False

    return answer
