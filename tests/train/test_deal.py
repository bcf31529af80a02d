"""Micro-batches dealt among ranks by their tokens."""

from __future__ import annotations

import random

import pytest

from grpo_train.train.buffer import deal


def loads(tokens: list[int], ranks: list[int], size: int) -> list[int]:
    return [sum(count for count, rank in zip(tokens, ranks, strict=True) if rank == each) for each in range(size)]


def test_one_rank_keeps_everything() -> None:
    assert deal([5, 0, 7], 1, 1) == [0, 0, 0]


def test_equal_micro_batches_stay_where_they_are() -> None:
    assert deal([7] * 8, 4, 1) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert deal([7] * 8, 2, 2) == [0, 0, 1, 1, 0, 0, 1, 1]


def test_micro_batches_without_work_stay_where_they_are() -> None:
    assert deal([0, 0, 0, 9], 2, 1) == [0, 0, 1, 1]
    assert deal([0] * 4, 2, 1) == [0, 0, 1, 1]


def test_an_unbalanced_buffer_is_shared_evenly() -> None:
    tokens = [9, 8, 7, 6, 0, 0, 0, 0]
    assert loads(tokens, deal(tokens, 2, 1), 2) == [15, 15]
    assert deal([5, 0, 0, 0], 4, 1) == [0, 1, 2, 3], "one micro-batch: three ranks have nothing to do"


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_differ_by_one_micro_batch_at_most(size: int) -> None:
    draw = random.Random(size)
    for _ in range(50):
        tokens = [draw.choice([0, draw.randrange(1, 5000)]) for _ in range(2 * 4 * size)]
        ranks = deal(tokens, size, 2)
        for update in (slice(0, 4 * size), slice(4 * size, None)):
            shares = loads(tokens[update], ranks[update], size)
            assert max(shares) - min(shares) <= max(tokens[update])
