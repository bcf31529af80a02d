"""Whatever happens to a run and its store in whatever order, nothing is lost that was not damaged by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.backup_world import World

HAPPENINGS = (
    "train", "save", "save", "rewind", "back_up", "back_up", "kill_backup", "clean_up", "kill_cleanup", "prune",
    "kill_prune", "restore", "kill_restore", "verify", "pass_a_day", "forget", "damage_here", "damage_there",
)  # fmt: skip


@settings(max_examples=settings.default.max_examples // 5)  # type: ignore[union-attr]
@given(st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 500)), min_size=3, max_size=14))
def test_nothing_is_lost_but_what_was_damaged(happenings: list[tuple[str, int]]) -> None:
    world = World()
    try:
        for name, n in happenings:
            getattr(world, name)(n)
            world.check()
    finally:
        world.close()
