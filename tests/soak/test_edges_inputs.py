"""Every command with every broken file of the kinds that it reads; the suite has 60 of the pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from grpo_train.run_dir import RunDir
from tests.support.broken_inputs import COMMANDS, Command, World, failures, fed_to, inputs, new_world


@pytest.fixture(scope="module")
def world(golden: Callable[[str], RunDir], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with new_world(tmp_path_factory.mktemp("broken"), golden) as made:
        yield made


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_no_traceback(command: Command, world: World) -> None:
    whole, reads = world.run_whole(command)
    assert whole.returncode == command.whole, whole
    fed = fed_to(command, reads)
    exits: Counter[int] = Counter()
    found = failures(world, fed, exits, reads)
    print(f"\n{' '.join(command.words)}: {len(fed)} of {len(inputs())} inputs, exits {dict(sorted(exits.items()))}")
    for each in found:
        print(*each, sep=" | ")
    assert found == []
