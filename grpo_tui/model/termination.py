"""Whether the box can be terminated, as far as it is known: green only while a fresh answer says so. No Textual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_train.run_dir.display import duration
from grpo_tui.model.app_time import monotonic
from grpo_tui.model.formatting import one_line
from grpo_tui.model.store import Store
from remote.events import Link
from remote.protocol.rows import UNREADABLE

OLD_AFTER = 3
"""An answer is old after this many of the box's intervals."""
FIRST_S = 1.0
"""After the first list of runs: what the user looks for comes first."""
RETRY_S = 60.0
"""After a refusal, such as that of an engine which is too old."""
SOON_S = 1.0
"""After something on the box changed."""
MAX_AGAIN_S = 120.0


@dataclass(frozen=True)
class Light:
    """What the header shows."""

    safe: bool
    reason: str
    """Why it is not safe, or not known; of a safe box, what to know about it."""


@dataclass(frozen=True)
class Question:
    at: float
    """When it was asked, by the monotonic clock."""
    about: object
    """What the app knew of the box."""


class Termination:
    """The last answer about one box, and when to ask again. ``clock``: monotonic seconds."""

    def __init__(self, store: Store, *, is_local: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._store, self._is_local, self._clock = store, is_local, clock
        self.reply: dict[str, Any] | None = None
        self.problem = ""
        """Why the box did not answer."""
        self._asked_at = 0.0
        """When the last answer was asked for: it holds from then on."""
        self._asked_about: object = None
        self._is_asking = False
        self._due = clock() + FIRST_S
        self._facts: tuple[object, object] = (None, None)

    @property
    def wanted(self) -> bool:
        """Whether the light is shown: of this machine only once a run on it has a backup."""
        return not self._is_local or any(row.backup for row in self._store.runs or ())

    def light(self) -> Light:
        """Green only for a fresh answer about the box as it is now."""
        if reason := self._unknown():
            return Light(False, reason)
        assert self.reply is not None
        if self.reply["safe"] and not self.reply["obstacles"]:
            return Light(True, "")
        if self.reply["safe"]:
            return Light(True, "kept on the mount only, no second copy")
        return Light(False, first_reason(self.reply))

    def _unknown(self) -> str:
        """Why the answer is not known, or what forbids termination without asking; "" where the answer counts."""
        store = self._store
        if store.link.state is not Link.CONNECTED or store.runs is None or store.recalled_at is not None:
            return "not known: not connected" if not store.connected else "not known yet"
        live = store.live_runs()
        if live:
            return f"{len(live):,} run{'s' if len(live) > 1 else ''} live"
        if store.topic_problem("runs"):
            return "not known: the runs cannot be read"
        if self.problem:
            return f"not known: {one_line(self.problem)}"
        if self.reply is None:
            return "not known yet"
        age = self._clock() - self._asked_at
        if age > OLD_AFTER * self._again_s:
            return f"not known: checked {duration(age)} ago"
        return "checking what changed" if self._asked_about != self._now_about() else ""

    @property
    def _again_s(self) -> float:
        return min(max(self.reply["again_s"], SOON_S), MAX_AGAIN_S) if self.reply is not None else MAX_AGAIN_S

    def due(self) -> bool:
        """Whether to ask the box now: not while something is live, which forbids it anyway."""
        store = self._store
        if self._is_asking or store.link.state is not Link.CONNECTED or store.runs is None:
            return False
        if store.recalled_at is not None or store.live_runs() or not self.wanted:
            return False
        now = self._clock()
        changed = self.reply is not None and self._asked_about != self._now_about()
        return now >= (min(self._due, self._asked_at + SOON_S) if changed else self._due)

    def asking(self) -> Question:
        """Note that the box is asked."""
        self._is_asking = True
        return Question(self._clock(), self._now_about())

    def answered(self, question: Question, reply: dict[str, Any]) -> None:
        """Take an answer, which holds from the time of its question."""
        self.reply, self.problem, self._asked_about, self._asked_at = reply, "", question.about, question.at
        self._due = self._clock() + self._again_s

    def failed(self, problem: str) -> None:
        """The box refused, or did not answer."""
        is_there = self._store.link.state is Link.CONNECTED
        self.reply, self.problem = None, problem if is_there else ""
        self._due = self._clock() + (RETRY_S if is_there else SOON_S)

    def ended(self) -> None:
        """The question is answered, refused, or no longer asked."""
        self._is_asking = False

    def _now_about(self) -> object:
        """What the app knows of the box that an answer depends on."""
        store = self._store
        versions = (store.versions["runs"], store.versions["sessions"])
        if self._facts[0] != versions:
            rows = tuple((row.name, row.state, row.step, row.backup, row.note) for row in store.runs or ())
            sessions = tuple(str(each["name"]) for each in store.sessions if not each.get("dead"))
            self._facts = versions, (rows, sessions)
        return self._facts[1]


def first_reason(reply: dict[str, Any]) -> str:
    """The first obstacle of an answer in a few words."""
    rows = reply["obstacles"]
    if not rows:
        return "the box does not say why"
    words = {"live": "is live", "behind": "is ahead of its backup", "no_backup": "has no backup"}
    words |= {"never_read_back": "has a backup that was never read back", "same_disk": "is backed up on the same disk"}
    words |= {"no_destination": "has nowhere to be backed up", "unreadable": "cannot be read"}
    row = rows[0]
    name = str(row["name"])
    if row.get("code") == "changed":
        return "something changed since it was checked"
    if row.get("code") == "no_destination":
        return "no destination for backups is described"
    said = words.get("unreadable" if UNREADABLE in row else str(row.get("code"))) or one_line(
        str(row.get("reason") or "is not safe")
    )
    more = int(reply["count"]) - 1
    return f"{name} {said}, {more:,} more" if more > 0 else f"{name} {said}"
