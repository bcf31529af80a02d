"""Prompts keep their entries as long as something uses them, and longer if nobody needs the room."""

from __future__ import annotations

import pytest
import torch

from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.decoding import Decoding
from grpo_train.rollout.native.entries import Entries, lanes_of
from grpo_train.rollout.native.slots import LengthRange, lane_count
from tests.rollout.native.models import PROMPTS, TOKENIZER, generate, make_model

A, B, C = (1,), (2, 3), (4,)


def test_a_prompt_is_read_once() -> None:
    entries = Entries(2)
    assert entries.take([A, B, A]) == ([0, 1, 0], {0: A, 1: B})
    assert entries.take([A, B]) == ([0, 1], {})


def test_an_unused_prompt_makes_room() -> None:
    entries = Entries(2)
    entries.take([A, A, B])
    entries.leave(0)
    entries.leave(0)
    assert entries.take([A]) == ([0], {}), "still there"
    entries.leave(0)
    assert entries.take([C]) == ([0], {0: C})


def test_what_is_there_stays_for_its_own_users() -> None:
    """A new prompt in the same batch takes the other free entry."""
    entries = Entries(2)
    entries.take([A, B])
    entries.leave(0)
    entries.leave(1)
    assert entries.take([C, A]) == ([1, 0], {1: C})


def test_lanes() -> None:
    ranges = [LengthRange(0, 2, 32, 2), LengthRange(4, 5, 64, 3)]
    assert lane_count(ranges) == 7
    assert lanes_of([0, 4, 1, 4, 0], ranges) == [0, 4, 2, 5, 1]


def test_prompts_are_read_once_also_when_slots_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One completion at a time, so that no two share a step."""
    read, backend = [], NativeBackend(make_model(), TOKENIZER)
    original = Decoding._start.__globals__["read_prompts"]

    def counted(copy: object, slots: object, prompts: dict[int, tuple[int, ...]], device: torch.device) -> object:
        read.extend(prompts.values())
        return original(copy, slots, prompts, device)

    monkeypatch.setattr("grpo_train.rollout.native.decoding.read_prompts", counted)
    expected = generate(backend, PROMPTS[:36])
    assert len(read) == 12
    read.clear()
    assert generate(backend, PROMPTS[:36], batch_size=2) == expected
    assert len(read) == 12
