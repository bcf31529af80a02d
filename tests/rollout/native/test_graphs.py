"""Recorded decoding steps generate the same completions. Here operations are recorded, on a GPU kernels."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from grpo_train.policy import memory
from grpo_train.policy.memory import free_bytes, kept_bytes, release_kept
from grpo_train.rollout import Completion
from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native import graphs
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.graphs import Step, StepGraphs, cuda_recorder, graph_rows
from tests.rollout.native.models import PROMPTS, TOKENIZER, generate, make_model
from tests.rollout.native.recorder import Recorder


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
    assert [graph_rows(count, 12) for count in (1, 2, 3, 5, 8, 9, 12)] == [2, 2, 4, 8, 8, 12, 12]


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


CPU = torch.device("cpu")
FEW = PROMPTS[:9]
SHORT = [prompt[: len(prompt) // 2 + 1] for prompt in FEW]
LONG = [[*prompt, *prompt, *prompt] for prompt in FEW]
CALL: dict[str, Any] = {"prompts": FEW, "batch_size": 5, "max_completion_length": 12}


def recording(model: Any = None, recorder: Any = None) -> NativeBackend:
    """Without the trial of recordings."""
    backend = NativeBackend(make_model() if model is None else model, TOKENIZER, look_every=4)
    backend._recorder = recorder or Recorder()
    return backend


def ids(backend: NativeBackend, **changes: Any) -> list[tuple[int, ...]]:
    return [one.ids for one in generate(backend, **{**CALL, **changes})]


@pytest.mark.usefixtures("layout")
def test_recordings_stay_between_calls() -> None:
    """What a call draws is what a new backend draws, whatever came before."""
    recorder, model = Recorder(), make_model()
    backend, plain = recording(model, recorder), NativeBackend(model, TOKENIZER)
    last = None
    calls: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"prompts": SHORT, "seeds": range(100, 109)}, True),
        ({"prompts": FEW[::-1], "max_completion_length": 10}, True),
        ({"batch_size": 4}, True),
        ({"prompts": LONG}, False),
        ({}, True),
        ({"temperature": 0.0}, False),
    ]
    for changes, is_kept in calls:
        recorder.shapes = 0
        assert ids(backend, **changes) == ids(plain, **changes), changes
        assert backend._kept is not None
        assert (backend._kept is last) is is_kept, changes
        assert (recorder.shapes == 0) is is_kept, changes
        last = backend._kept


def test_slots_grow_to_what_calls_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """They become as large as both kinds of calls need, which therefore do not take turns."""
    monkeypatch.setitem(native.SHARE_FROM, "cpu", 10**9)
    backend, calls = recording(), ({"prompts": LONG, "batch_size": 2}, {"prompts": SHORT, "batch_size": 8})
    ids(backend, **calls[0])
    assert backend._kept is not None
    first = weakref.ref(backend._kept.decoding)
    ids(backend, **calls[1])
    assert first() is None, "its graphs are dropped together"
    second = backend._kept
    for changes in calls:
        ids(backend, **changes)
        assert backend._kept is second
    assert second.room.slots == 8


def test_kept_recordings_read_new_weights() -> None:
    model = make_model()
    backend = recording(model)
    before, kept = ids(backend), backend._kept
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    backend.sync()
    assert ids(backend) == ids(NativeBackend(model, TOKENIZER)) != before
    assert kept is backend._kept is not None


def test_an_error_drops_what_is_kept() -> None:
    backend = recording()
    expected = ids(backend)

    def fail(index: int, place: int, token: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ids(backend, on_token=fail)
    assert backend._kept is None
    assert ids(backend) == expected


def test_running_out_of_memory_drops_all_recordings(capsys: pytest.CaptureFixture[str]) -> None:
    class Small(Recorder):
        def record(self, step: Step) -> Step:
            if self.is_full:
                self.is_full = False
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().record(step)

        is_full = False

    recorder = Small()
    backend = recording(recorder=recorder)
    expected = ids(backend)
    first = weakref.ref(backend._kept.decoding)  # type: ignore[union-attr]
    recorder.is_full = True
    assert ids(backend, batch_size=8) == expected
    assert first() is None
    assert backend._kept is not None
    assert backend._kept.room.slots == 4
    assert "out of memory: continuing with 4 completions at once" in capsys.readouterr().out


def test_what_is_kept_is_free(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As many slots fit and a training pass may be as large as if nothing were kept."""
    release_kept()
    backend, total = recording(), 10**9
    monkeypatch.setattr(memory, "_unused_bytes", lambda device: total - kept_bytes(CPU))
    room = backend._room(FEW, 12)
    fitting = backend._fitting(room)
    ids(backend)
    # 5 slots and a spare one, of 64 positions, in 2 layers: keys and values of 2 heads of 16 numbers of 8 bytes
    assert kept_bytes(CPU) > 6 * 64 * 2 * 2 * 2 * 16 * 8
    assert kept_bytes(torch.device("cuda")) == 0
    assert (free_bytes(CPU), backend._fitting(room)) == (total, fitting)
    assert (release_kept(), kept_bytes(CPU), release_kept()) == (True, 0, False)
    ids(backend)
    assert (backend._kept is not None, backend.fallbacks) == (True, {})
    assert release_kept(for_good=True)
    ids(backend)
    assert backend._kept is None
    message = "rollouts make slots and CUDA graphs anew in each call, which is slower: memory ran out"
    assert backend.fallbacks == {"kept": message}
    assert not NativeBackend(make_model(), TOKENIZER, failed=backend.fallbacks)._keeps
    assert capsys.readouterr().out.count("memory ran out") == 2


def test_nothing_is_kept_without_recordings() -> None:
    backend = NativeBackend(make_model(), TOKENIZER)
    ids(backend)
    assert backend._kept is None


def test_another_backend_gives_back_what_it_keeps_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keeping, backend, flow, sizes = recording(), NativeBackend(make_model(), TOKENIZER), NativeBackend._flow, []
    ids(keeping)

    def small(self: Any, prompts: Any, seeds: Any, indices: Any, size: int, *settings: Any) -> Any:
        sizes.append(size)
        if kept_bytes(CPU):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return flow(self, prompts, seeds, indices, size, *settings)

    monkeypatch.setattr(native.NativeBackend, "_flow", small)
    ids(backend, batch_size=9)
    assert (sizes, keeping._kept) == ([9, 9], None)
    assert "out of memory: continuing with 9 completions at once" in capsys.readouterr().out


def test_captures_share_a_stream_and_clear_the_cache_only_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's functions are stubs that note their calls."""
    calls: list[Any] = []

    class Graph:
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            calls.append(("begin", pool, capture_error_mode))

        def capture_end(self) -> None:
            calls.append("end")

        def replay(self) -> None:
            calls.append("replay")

    def step() -> None:
        calls.append("step")
        if fails and fails.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(calls.append(stream)))
    record, captured = cuda_recorder("stream"), ["stream", ("begin", "pool", "thread_local"), "step", "end"]  # type: ignore[arg-type]
    fails = [False, True, False, True, True]
    record(step)()
    assert calls == [*captured, "replay"]
    calls.clear()
    record(step)
    assert calls == [*captured, "empty", *captured]
    with pytest.raises(torch.OutOfMemoryError):
        record(step)
