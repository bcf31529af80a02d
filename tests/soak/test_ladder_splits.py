"""All problems of the ladder's tasks: distinct, held out, reproducible. Part of ``make soak``."""

from __future__ import annotations

import pytest

from grpo_train.tasks.shared.generated import MAX_TRAIN
from tests.tasks import test_ladder


@pytest.mark.parametrize("level", test_ladder.LEVELS)
@pytest.mark.parametrize("name", test_ladder.RUNGS)
def test_whole_splits_are_disjoint(name: str, level: int) -> None:
    test_ladder.test_splits_are_disjoint_and_reproducible(name, level, MAX_TRAIN)
