"""Keys and values are written in place and never move; a step is one graph, on any device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_train.rollout.draw import Draw
from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native import decoding, flash
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.decoding import read_prompts
from grpo_train.rollout.native.flash import spans_of
from grpo_train.rollout.native.slots import LengthRange, Shared, Slots, mask_of, ranges_of, step_of
from grpo_train.rollout.native.weights import FrozenCopy, _set
from grpo_train.tiny.architectures import Architecture
from tests.rollout.native.models import PROMPTS, TOKENIZER, generate, make_model


class Calls(TorchDispatchMode):
    """Counts the calls of each operation; those with a tensor of the caches separately."""

    def __init__(self) -> None:
        super().__init__()
        self.all: Counter[str] = Counter()
        self.on_caches: Counter[str] = Counter()
        self.in_steps = 0
        """Operations of the forward passes of decoding steps."""
        self.caches: dict[int, set[int]] = {}
        """Addresses of the storages of keys and values, by layer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        self.all[name] += 1
        known = set().union(*self.caches.values()) if self.caches else set()
        tensors = [each for each in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if any(each.untyped_storage().data_ptr() in known for each in tensors):
            self.on_caches[name] += 1
        return func(*args, **(kwargs or {}))


def counted(model: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Calls, int]:
    """Operations of a whole rollout, and its number of decoding steps."""
    backend, calls, steps = NativeBackend(model, TOKENIZER, look_every=4), Calls(), 0
    original = native.FrozenCopy.logits

    def logits(self: Any, slots: Any, work: Any, ids: Any, positions: Any, keep: Any) -> Any:
        nonlocal steps
        steps += ids.shape[1] == 1
        before = calls.all.total()
        found = original(self, slots, work, ids, positions, keep)
        calls.in_steps += (calls.all.total() - before) * (ids.shape[1] == 1)
        for layer, pair in slots.layers.items():
            at = {each.untyped_storage().data_ptr() for each in pair if each.numel()}
            assert calls.caches.setdefault(layer, at) == at, "keys and values moved"
        return found

    with monkeypatch.context() as patch, calls:
        patch.setattr(native.FrozenCopy, "logits", logits)
        generate(backend, **changes)
    return calls, steps


@pytest.mark.usefixtures("layout")
def test_keys_and_values_never_move(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, steps = counted(make_model(dtype=torch.float32), monkeypatch, batch_size=5)
    assert calls.on_caches["index_put_"] > 2 * steps, "keys and values of two layers are written in place"
    assert not {"cat", "index_select", "index", "clone", "gather"} & set(calls.on_caches)


@pytest.mark.usefixtures("layout")
def test_the_host_reads_once_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, steps = counted(make_model(dtype=torch.float32), monkeypatch, batch_size=5)
    # tolist() of the tensor of a look is one read; without a GPU its numbers are taken one by one without dispatch.
    assert calls.all["_local_scalar_dense"] == 0
    assert steps % 4 == 0
    assert not {"nonzero", "item", "is_nonzero"} & set(calls.all)


@pytest.mark.usefixtures("layout")
def test_an_adapter_costs_no_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    per_step = []
    for lora in (False, True):
        model = make_model(lora=lora, dtype=torch.float32)
        calls, steps = counted(model, monkeypatch, prompts=PROMPTS[:1] * 2, max_completion_length=5)
        per_step.append(calls.in_steps / steps)
    assert per_step[0] == per_step[1]


def test_ranges_of_slots() -> None:
    """Neighbors share a call unless that wastes more positions than a call costs."""
    assert ranges_of({0: 64, 1: 64, 2: 128}, 100) == [LengthRange(0, 2, 64), LengthRange(2, 3, 128)]
    assert ranges_of({0: 64, 1: 64, 2: 128}, 128) == [LengthRange(0, 3, 128)]
    assert ranges_of({3: 64, 5: 64, 9: 64}, 100) == [LengthRange(3, 6, 64), LengthRange(9, 10, 64)]
    assert ranges_of({0: 64, 1: 64}, 100, {0: 2, 1: 3}) == [LengthRange(0, 2, 64, 3)]
    assert ranges_of({0: 64, 1: 64}, 100, {0: 1, 1: 3}) == [LengthRange(0, 1, 64, 1), LengthRange(1, 2, 64, 3)]


def rows_of(copy: FrozenCopy, slots: Slots, count: int, *, steps: int = 0) -> Any:
    """A decoding step of the first slots, with a plan that is the same for every step. Two slots share a prompt."""
    position_S = torch.full((slots.count,), 40 + steps, device=copy.device)
    slot_B, shared = torch.arange(count, device=copy.device), None
    if slots.entries:
        lengths = torch.full((slots.entries,), 9, device=copy.device)
        ranges = [LengthRange(0, -(-count // 2), slots.prompt_length, 2)]
        mask = mask_of(lengths, slots.prompt_length, copy.model.dtype)
        entries = torch.arange(slots.entries, device=copy.device)
        shared = Shared(slot_B, ranges, mask, spans=spans_of(entries, lengths, slots.prompt_length, 2))
    ranges, flash_length = [LengthRange(0, count, slots.length)], slots.length * slots.is_flash
    return step_of(
        slot_B, position_S, ranges, copy.model.dtype, is_dense=True, shared=shared, flash_length=flash_length
    )


def slots_of(layout: str, *, length: int = 64, is_flash: bool = False) -> tuple[Slots, dict[int, tuple[int, ...]]]:
    """8 slots with their prompts, or 4 entries with theirs."""
    slots = Slots(8, length, *((4, length) if layout == "shared" else (0, 0)), is_flash=is_flash)
    return slots, {place: tuple(PROMPTS[3 * place]) for place in range(slots.entries or 8)}


def decode(copy: FrozenCopy, slots: Slots, work: Any) -> torch.Tensor:
    ids_B1 = torch.full((len(work.slot_B), 1), 7, device=copy.device)
    return copy.logits(slots, work, ids_B1, work.position_B.unsqueeze(1), 1)[:, -1]


@pytest.mark.parametrize("architecture", ["qwen3"])
def test_a_decoding_step_is_one_graph_per_number_of_rows(architecture: Architecture, layout: str) -> None:
    """tests/soak has the other architectures."""
    copy, (slots, prompts) = FrozenCopy(make_model(architecture, lora=True, dtype=torch.float32)), slots_of(layout)
    eager = copy.model
    graphs = CompileCounter()
    torch.compiler.reset()
    with torch.inference_mode():
        read_prompts(copy, slots, prompts, copy.device)
        for steps in range(3):
            for count in (8, 4, 1):
                work = rows_of(copy, slots, count, steps=steps)
                expected = decode(copy, slots, work)
                copy.model = torch.compile(eager, fullgraph=True, backend=graphs, dynamic=False)
                torch.testing.assert_close(decode(copy, slots, work), expected)
                copy.model = eager
    assert graphs.frame_count == 3


@pytest.mark.parametrize("is_flash", [False] if flash.lacks() else [False, True])
def test_steps_run_on_another_device_in_its_type(layout: str, is_flash: bool) -> None:
    """Fake CUDA tensors: nothing is computed, but each operation checks devices and types."""
    copy = FrozenCopy(make_model("qwen3", lora=True, dtype=torch.bfloat16))
    torch.backends.cuda.enable_cudnn_sdp(False)
    with FakeTensorMode(), torch.no_grad():
        for name, weight in list(copy.model.named_parameters(remove_duplicate=False)):
            fake = torch.empty(weight.shape, dtype=weight.dtype, device="cuda")
            _set(copy.model, name, torch.nn.Parameter(fake, requires_grad=False))
        for module in copy.model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
        copy.device, copy._unused = torch.device("cuda"), torch.empty((1, 1, 1, 1), dtype=torch.bool, device="cuda")
        slots, prompts = slots_of(layout, is_flash=is_flash)
        found = [read_prompts(copy, slots, prompts, copy.device), decode(copy, slots, rows_of(copy, slots, 5))]
        for logits_BV in found:
            assert (logits_BV.device.type, logits_BV.dtype) == ("cuda", torch.bfloat16)
            uniform_B = torch.empty(len(logits_BV), dtype=torch.float64, device="cuda")
            token_B, logp_B = Draw(1.0)(logits_BV, uniform_B)
            assert logp_B is not None
            assert (token_B.device.type, logp_B.device.type, logp_B.dtype) == ("cuda", "cuda", torch.float32)
        for pair in slots.layers.values():
            assert {(each.device.type, each.dtype) for each in pair} == {("cuda", torch.bfloat16)}


def test_prompts_are_read_in_pieces_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that occurs again takes no room; one that alone is too long is read alone."""
    monkeypatch.setattr(decoding, "PREFILL_TOKENS", 10)
    a, b, c = (1,) * 4, (2,) * 5, (3,) * 30
    found = [list(chunk) for chunk in decoding._chunks({0: a, 1: b, 2: a, 3: b, 4: c, 5: c, 6: a, 7: b, 8: (4, 4)})]
    assert found == [[0, 1, 2, 3], [4, 5], [6, 7], [8]]
    assert list(decoding._chunks({})) == []
