"""Data order of a run."""

from __future__ import annotations

import pytest

from grpo_train.tasks import data_order


def test_each_epoch_is_a_permutation() -> None:
    epochs = [[data_order(7, 3, 7 * epoch + offset) for offset in range(7)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert data_order(7, 3, 8) == epochs[1][1]  # stateless: positions in any order
    assert [data_order(7, 4, position) for position in range(7)] != epochs[0]
    assert epochs[0] == [5, 1, 4, 3, 6, 0, 2]  # the same in every version of Python, for resumes
    with pytest.raises(ValueError, match="size"):
        data_order(0, 0, 0)
