"""Every command with every broken file of the kinds that it reads; the suite has 60 of the pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from grpo_train.run_dir import RunDir
from tests.support.broken_inputs import COMMANDS, Command, World, failures, inputs, new_world, pairs


@pytest.fixture(scope="module")
def world(golden: Callable[[str], RunDir], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with new_world(tmp_path_factory.mktemp("broken"), golden) as made:
        yield made


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_no_traceback(command: Command, world: World) -> None:
    fed = [pair for pair in pairs() if pair[0] == command]
    world.renew()
    whole = world.run(command)
    assert whole.returncode == command.whole, whole
    exits: Counter[int] = Counter()
    found = failures(world, fed, exits)
    print(f"\n{' '.join(command.words)}: {len(fed)} of {len(inputs())} inputs, exits {dict(sorted(exits.items()))}")
    for each in found:
        print(*each, sep=" | ")
    assert found == []
