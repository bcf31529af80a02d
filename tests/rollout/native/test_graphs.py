"""Recorded decoding steps generate the same completions. Here operations are recorded, on a GPU kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from grpo_train.rollout import Completion
from grpo_train.rollout.native import graphs
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.graphs import Record, Step, StepGraphs, rows_of
from tests.rollout.native.models import PROMPTS, TOKENIZER, generate, make_model


class Operations(TorchDispatchMode):
    """Records operations with their arguments: tensors made before stay where they are, all else is as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, found))
        return found

    def repeat(self) -> None:
        """Do the same again."""
        made: dict[int, Any] = {}

        def now(value: Any) -> Any:
            return made.get(id(value), value)

        for func, args, kwargs, found in self.calls:
            again = func(*tree_map(now, args), **tree_map(now, kwargs))
            for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    made[id(old)] = new


class Recorder:
    """Stands in for a GPU's recorder."""

    def __init__(self) -> None:
        self.shapes = self.repeats = 0

    def __call__(self) -> Record:
        return self.record

    def record(self, step: Step) -> Step:
        operations, is_executed = Operations(), True
        with operations:
            step()
        self.shapes += 1

        def replay() -> None:
            nonlocal is_executed
            if not is_executed:  # unlike a GPU's, this recording executed the step
                self.repeats += 1
                operations.repeat()
            is_executed = False

        return replay


def both(recorder: Any, **changes: Any) -> tuple[list[Completion], list[Completion]]:
    """Completions without and with recorded steps."""
    every = changes.pop("look_every", 4)
    plain, recorded = (NativeBackend(make_model(), TOKENIZER, look_every=every) for _ in range(2))
    recorded._record_with(recorder)
    return generate(plain, **changes), generate(recorded, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 5},
        {"batch_size": 5, "temperature": 0.0},
        {"batch_size": 37, "look_every": 1},
        {"batch_size": 8, "look_every": 8, "top_p": 0.9, "top_k": 20},
        {"batch_size": 1, "prompts": PROMPTS[:3]},
    ],
)
@pytest.mark.usefixtures("layout")
def test_recorded_steps_change_no_completion(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "WIDTH_STEP", 32)  # several shapes for short completions
    recorder = Recorder()
    plain, recorded = both(recorder, **changes)
    assert recorder.repeats > 20
    assert [one.ids for one in recorded] == [one.ids for one in plain]
    assert [one.finished for one in recorded] == [one.finished for one in plain]
    for one, other in zip(recorded, plain, strict=True):
        assert one.logps == pytest.approx(other.logps, abs=1e-6)


def test_shapes_are_few() -> None:
    """A recording for each power of two of rows: what is missing is filled up."""
    recorder = Recorder()
    backend = NativeBackend(make_model(), TOKENIZER, look_every=1)
    backend._record_with(recorder)
    assert (recorder.shapes, backend._recorder) == (2, recorder), "the trials with copied and with shared prompts"
    recorder.shapes = 0
    generate(backend, batch_size=12)
    assert recorder.shapes <= 4, "12, 8, 4 and 2 rows"
    assert [rows_of(count, 12) for count in (1, 2, 3, 5, 8, 9, 12)] == [2, 2, 4, 8, 8, 12, 12]


def test_a_step_that_cannot_be_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(step: Step) -> Step:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    plain, recorded = both(lambda: refuse)
    assert recorded == plain
    reason = "operation not permitted when stream is capturing"
    assert capsys.readouterr().out == f"rollouts without CUDA graphs, which are slower: {reason}\n"


def test_recordings_that_generate_other_tokens_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    """Here a recording does nothing, as if a kernel were missing."""
    plain, recorded = both(lambda: lambda step: lambda: None)
    assert recorded == plain
    assert capsys.readouterr().out == "rollouts without CUDA graphs, which are slower: they generate other tokens\n"


def test_a_failure_after_the_trial_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    backend, plain = (NativeBackend(make_model(), TOKENIZER, look_every=4) for _ in range(2))
    backend._record_with(Recorder())

    def refuse(step: Step) -> Step:
        raise RuntimeError("invalid argument")

    backend._recorder = lambda: refuse
    expected = [one.ids for one in generate(plain, batch_size=5)]
    for _ in range(2):
        assert [one.ids for one in generate(backend, batch_size=5)] == expected
    assert capsys.readouterr().out.count("without CUDA graphs") == 1


def test_running_out_of_memory_is_no_failure_of_a_recording() -> None:
    """Fewer completions at once may fit."""

    def refuse(step: Step) -> Step:
        raise torch.OutOfMemoryError("CUDA out of memory")

    steps = StepGraphs(refuse)
    steps.run((4, 64), lambda: None)
    with pytest.raises(torch.OutOfMemoryError):
        steps.run((4, 64), lambda: None)
    assert steps.failure == ""
