"""Which prompt is in which entry of the cache, for completions that share their prompts' keys and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grpo_train.rollout.native.slots import LengthRange


class Entries:
    """Prompts of the completions in progress, each in an entry of its own. The last user of a prompt frees its entry,
    which keeps it until another prompt needs the entry."""

    def __init__(self, count: int) -> None:
        """``count``: as many as prompts in progress, at least."""
        self._free = list(range(count))
        """Those freed longest ago first."""
        self._entries: dict[tuple[int, ...], int] = {}
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._users = Counter[int]()

    def take(self, prompts: Sequence[tuple[int, ...]]) -> tuple[list[int], dict[int, tuple[int, ...]]]:
        """The entry of each prompt, one more user each; and the prompts to be read, by entry."""
        unread = {}
        # Those that are here come first, so that none of them makes room for another.
        for prompt in sorted(prompts, key=lambda prompt: prompt not in self._entries):
            if prompt in self._entries:
                entry = self._entries[prompt]
                if not self._users[entry]:
                    self._free.remove(entry)
            else:
                entry = self._free.pop(0)
                self._entries.pop(self._prompts.get(entry, ()), None)
                self._entries[prompt], self._prompts[entry], unread[entry] = entry, prompt, prompt
            self._users[entry] += 1
        return [self._entries[prompt] for prompt in prompts], unread

    def leave(self, entry: int) -> None:
        """One user less."""
        self._users[entry] -= 1
        if not self._users[entry]:
            self._free.append(entry)


def lanes_of(entry_B: Sequence[int], ranges: Sequence[LengthRange]) -> list[int]:
    """The lane of each row (:class:`~grpo_train.rollout.native.slots.Shared`), by its entry."""
    first: dict[int, int] = {}
    lane = 0
    for each in ranges:
        for entry in range(each.start, each.stop):
            first[entry] = lane
            lane += each.rows
    seen = Counter[int]()
    lanes = []
    for entry in entry_B:
        lanes.append(first[entry] + seen[entry])
        seen[entry] += 1
    return lanes
