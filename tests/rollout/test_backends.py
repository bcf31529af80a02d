"""Compiled layers and CUDA graphs only where they take less time than they save."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_train.ask import checkpoint
from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.evaluation.workers import matches, single_turn
from grpo_train.rollout import adversary
from grpo_train.rollout.backends import GRAPHS, LAYERS, decoding_steps, make_backend, pays
from grpo_train.rollout.native import backend as native
from grpo_train.tasks import load_task
from tests.support.engine import config_text


def test_what_pays_at_28_layers() -> None:
    """The numbers of docs/performance.md."""
    for effort, steps in ((GRAPHS, 438), (LAYERS, 30_267)):
        assert pays(effort, steps, 28)
        assert not pays(effort, steps - 1, 28)
        assert pays(effort, None, 1)
    assert decoding_steps(1_319, 512, 256) == 6 * 512
    assert decoding_steps(1_319, 512) == 512
    assert decoding_steps(0, 512) == 0


@pytest.mark.parametrize(
    ("steps", "changes", "expected"),
    [
        (None, {}, (True, True)),
        (100_000, {}, (True, True)),
        (1_000, {}, (True, False)),
        (100, {}, (False, False)),
        (100, {"compile": "on"}, (False, True)),
        (None, {"compile": "off", "cuda_graphs": False}, (False, False)),
    ],
)
def test_a_gpu_does_what_pays(
    monkeypatch: pytest.MonkeyPatch, steps: int | None, changes: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(native, "NativeBackend", lambda *_, **options: seen.update(options))
    shape = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=28))
    policy: Any = SimpleNamespace(model=SimpleNamespace(device=torch.device("cuda"), config=shape), tokenizer=None)
    config = Config.model_validate({"rollout": changes, "model": {"dtype": "float32"}})
    make_backend(config, policy, steps=steps)
    assert (seen["cuda_graphs"], seen["compile_layers"]) == expected


NOTHING: Any = SimpleNamespace(name="step_1", path="", is_backbone=lambda target: True)


def ask(config: Config) -> None:
    checkpoint.AskedCheckpoint(NOTHING, NOTHING, config, load_task(config.task), NOTHING)


def evaluate(config: Config) -> None:
    source = single_turn.SingleTurnSource(NOTHING, NOTHING, config, load_task(config.task), [NOTHING] * 10)
    vars(source)["_policy"], vars(source)["_batch_size"] = NOTHING, 6
    assert source._backend


def play(config: Config) -> None:
    task: Any = load_task(config.task)
    matches.MatchSource(NOTHING, NOTHING, config, task, [NOTHING] * 10)._model_player(NOTHING)


def oppose(config: Config) -> None:
    adversary.GreedyOpponent(NOTHING, config)


@pytest.mark.parametrize(
    ("module", "run", "changes", "expected"),
    [
        (checkpoint, ask, {}, 100),
        (single_turn, evaluate, {"eval__nproc": 2, "eval__num_samples": 3}, 3 * 100),
        (matches, play, {"task__name": "tictactoe", "eval__batch_size": 4}, 5 * 3 * 100),
        (adversary, oppose, {"rollout__generation_batch_size": 5, "algorithm__num_iterations": 4}, 2 * 4 * 40),
    ],
)
def test_callers_name_their_decoding_steps(
    monkeypatch: pytest.MonkeyPatch, module: Any, run: Callable[[Config], None], changes: dict[str, Any], expected: int
) -> None:
    """Of one question, of 30 samples in two processes, of 5 turns in 10 matches, of 16 answers to each of 2 buffers."""
    seen: list[int] = []

    def record(*_: Any, steps: int | None = None, **__: Any) -> Any:
        seen.append(steps or 0)
        return NOTHING

    monkeypatch.setattr(module, "make_backend", record)
    monkeypatch.setattr(checkpoint, "load_checkpoint", lambda *_: SimpleNamespace(device="cpu"))
    run(load_config(config_text(eval__max_completion_length=100, **changes)))
    assert seen == [expected]
