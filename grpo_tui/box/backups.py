"""What is stored elsewhere, what can go, and whether the box can be terminated. No Textual."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.display import duration
from grpo_tui.box.asking import SOON_S, Asking, monotonic
from grpo_tui.box.formatting import counted, one_line
from grpo_tui.box.store import Store
from remote.events import Link
from remote.protocol.rows import UNREADABLE


@dataclass
class SpareRun:
    """The checkpoints of a run that can go."""

    name: str
    steps: list[int] = field(default_factory=list)
    size: float = 0.0
    evaluated: dict[int, str] = field(default_factory=dict)
    """Step to its accuracies."""

    def paths(self, root: str) -> str:
        """Their directories, as a shell on the box writes them: ``/root/…/step_{200,400}``."""
        steps = ",".join(map(str, self.steps))
        folder = shlex.quote(f"{root}/training_runs/{self.name}/training_state")
        return f"{folder}/step_{steps if len(self.steps) == 1 else f'{{{steps}}}'}"

    def ranges(self) -> str:
        """``200–1,400 (7), 1,800``: the steps, those in even distances together."""
        parts: list[str] = []
        at = 0
        while at < len(self.steps):
            end = at
            while end + 1 < len(self.steps) and (
                self.steps[end + 1] - self.steps[end] == self.steps[at + 1] - self.steps[at]
            ):
                end += 1
            if end - at >= 2:
                parts.append(f"{self.steps[at]:,}–{self.steps[end]:,} ({end - at + 1})")
                at = end + 1
            else:
                parts.append(f"{self.steps[at]:,}")
                at += 1
        return ", ".join(parts)


def spare_runs(rows: Iterable[Mapping[str, Any]]) -> list[SpareRun]:
    """The rows of a ``spare_checkpoints`` reply by run, the run that frees the most first."""
    found: dict[str, SpareRun] = {}
    for row in rows:
        if UNREADABLE in row or row.get("step") is None:
            continue
        run = found.setdefault(row["run"], SpareRun(row["run"]))
        step = int(row["step"])
        run.steps.append(step)
        run.size += row.get("bytes", 0.0)
        if row.get("evaluated"):
            run.evaluated[step] = str(row["evaluated"])
    for run in found.values():
        run.steps.sort()
    return sorted(found.values(), key=lambda run: (-run.size, run.name))


@dataclass(frozen=True)
class CleanUpPlan:
    """A plan of the engine."""

    run: str
    host: str
    destination: str
    store: str
    """URL of the destination."""
    snapshot: int
    keep: int
    """Number of newest checkpoints that were asked to be kept."""
    read_back: str
    """When the backup was read back."""
    steps: tuple[int, ...]
    """Of the checkpoints that would be removed."""
    bytes: float
    kept: tuple[tuple[int, str], ...]
    """(step, reason) of those that stay."""

    @property
    def ranges(self) -> str:
        """``10–40 (4), 100``: the steps that would be removed."""
        return SpareRun(self.run, list(self.steps)).ranges()

    @property
    def count(self) -> str:
        return counted(len(self.steps), "checkpoint")


def cleanup_plan(reply: Mapping[str, Any], keep: int) -> CleanUpPlan:
    """From a ``plan_cleanup`` reply."""
    removed = [row for row in reply["removed"] if UNREADABLE not in row]
    kept = [row for row in reply["kept"] if UNREADABLE not in row]
    number, age = int(reply["read_back"]), reply["read_back_age_s"]
    read_back = "never in whole"
    if number:
        read_back = f"snapshot {number}" + (f", {duration(age)} ago" if age is not None else "")
    return CleanUpPlan(
        reply["run"], reply["host"], reply["destination"], reply["store"], int(reply["snapshot"]), keep, read_back,
        tuple(sorted(int(row.get("step", 0)) for row in removed)), sum(row.get("bytes", 0.0) for row in removed),
        tuple(sorted((int(row.get("step", 0)), row.get("reason", "")) for row in kept)),
    )  # fmt: skip


SHOWN_KINDS = {"training_runs": "", "archive/completed_runs": "archived", "archive/important_checkpoints": "archived"}
"""Kinds that a user restores by hand, and what they are besides; evaluations come with their run."""
USABLE = ("complete", "marked")


@dataclass(frozen=True)
class StoredSnapshot:
    """A snapshot of a run. Unknown values are 0 or empty."""

    number: int
    state: str
    reason: str
    age_s: float
    steps: tuple[int, ...]
    bytes: float
    run_state: str


@dataclass(frozen=True)
class StoredRun:
    """A run in a destination."""

    name: str
    identity: str
    kind: str
    destination: str
    here: bool
    """Whether it is on the box."""
    same_disk: bool
    snapshots: tuple[StoredSnapshot, ...]
    """Newest first."""

    @property
    def full_name(self) -> str:
        """What names it even where a destination holds several of its name."""
        return f"{self.name}--{self.identity}"

    @property
    def usable(self) -> list[StoredSnapshot]:
        return [each for each in self.snapshots if each.state in USABLE]

    @property
    def newest(self) -> StoredSnapshot | None:
        return next(iter(self.usable), None)

    @property
    def problem(self) -> str:
        """Why it cannot be restored; "" if it can."""
        if self.usable:
            return ""
        return next((each.reason or each.state for each in self.snapshots), "") or "no complete snapshot"


def stored_runs(rows: Iterable[Mapping[str, Any]], destination: str) -> list[StoredRun]:
    """The rows of a ``list_backups`` reply: those that are not on the box first, then the newest.

    A run that was archived later is listed once: it is restored as it was.
    """
    found = [
        StoredRun(
            row["name"], row["identity"], row.get("kind", ""), destination, bool(row.get("here")),
            bool(row.get("same_disk")), tuple(map(_snapshot, row.get("snapshots") or ())),
        )
        for row in rows
        if UNREADABLE not in row and row.get("kind") in SHOWN_KINDS
    ]  # fmt: skip
    running = {run.full_name for run in found if run.kind == "training_runs"}
    found = [run for run in found if run.kind == "training_runs" or run.full_name not in running]
    return sorted(found, key=lambda run: (run.here, run.newest.age_s if run.newest else float("inf"), run.name))


def _snapshot(row: Mapping[str, Any]) -> StoredSnapshot:
    return StoredSnapshot(
        int(row.get("number", 0)), row.get("state", ""), row.get("reason", ""), row.get("age_s", 0.0),
        tuple(sorted(int(step) for step in row.get("steps") or ())), row.get("bytes", 0.0), row.get("run_state", ""),
    )  # fmt: skip


OLD_AFTER = 3
"""An answer is old after this many of the box's intervals."""
FIRST_S = 1.0
"""After the first list of runs: what the user looks for comes first."""
REFUSED_S = 60.0
"""After a refusal, such as that of an engine which is too old."""
MAX_AGAIN_S = 120.0


@dataclass(frozen=True)
class Light:
    """What the header shows."""

    safe: bool
    reason: str
    """Why it is not safe, or not known; of a safe box, what to know about it."""
    is_empty: bool = False
    """Whether the root has no runs: nothing to lose, unless its disk is not mounted."""


class Termination:
    """The last answer about one box, and when to ask again. ``clock``: monotonic seconds."""

    def __init__(self, store: Store, *, is_local: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._store, self._is_local, self._clock = store, is_local, clock
        self.reply: dict[str, Any] | None = None
        self.asking = Asking(clock, REFUSED_S)
        """About what the app knew of the box."""
        self._first_at = clock() + FIRST_S
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
        return Light(False, first_reason(self.reply), is_without_runs(self.reply))

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
        if self.asking.problem:
            return f"not known: {one_line(self.asking.problem)}"
        if self.reply is None:
            return "not known yet"
        age = self.asking.age
        if age > OLD_AFTER * self._again_s:
            return f"not known: checked {duration(age)} ago"
        return "checking what changed" if self._has_changed else ""

    @property
    def _again_s(self) -> float:
        return min(max(self.reply["again_s"], SOON_S), MAX_AGAIN_S) if self.reply is not None else MAX_AGAIN_S

    def due(self) -> bool:
        """Whether to ask the box now: not while something is live, which forbids it anyway."""
        store = self._store
        if store.link.state is not Link.CONNECTED or store.runs is None:
            return False
        if store.recalled_at is not None or store.live_runs() or not self.wanted:
            return False
        return self._clock() >= self._first_at and self.asking.is_due(SOON_S if self._has_changed else self._again_s)

    def answer(self, about: object, reply: dict[str, Any]) -> None:
        """Take an answer, which holds from the time of its question."""
        if self.asking.end(about):
            self.reply = reply

    def fail(self, about: object, problem: str) -> None:
        """The box refused, or did not answer."""
        if self.asking.end(about, problem):
            self.reply = None
            if self._store.link.state is not Link.CONNECTED:
                self.asking.forget()

    @property
    def _has_changed(self) -> bool:
        """Whether the last answer is about a box as it was."""
        return self.reply is not None and self.asking.ended != self.about()

    def about(self) -> object:
        """What the app knows of the box that an answer depends on."""
        store = self._store
        versions = (store.versions["runs"], store.versions["sessions"])
        if self._facts[0] != versions:
            rows = tuple((row.name, row.state, row.step, row.backup, row.note) for row in store.runs or ())
            sessions = tuple(str(each["name"]) for each in store.sessions if not each.get("dead"))
            self._facts = versions, (rows, sessions)
        return self._facts[1]


NOTHING = "no_runs"
"""Code of the obstacle that is a root without runs."""
UNSENT = ("no_backup", "behind", "no_destination")
"""Codes of obstacles that a backup ends."""


def unsent_runs(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The runs whose newest state is in no backup."""
    return [row["name"] for row in rows if row.get("code") in UNSENT and row.get("kind") == "training_runs"]


def is_without_runs(reply: Mapping[str, Any]) -> bool:
    """Whether the one obstacle is a root without runs."""
    return [row.get("code") for row in reply["obstacles"]] == [NOTHING]


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
    if row.get("code") == NOTHING:
        return "no run was launched, or the disk of the root is not mounted"
    if row.get("code") == "changed":
        return "something changed since it was checked"
    if row.get("code") == "no_destination":
        return "no destination for backups is described"
    said = words.get("unreadable" if UNREADABLE in row else str(row.get("code"))) or one_line(
        str(row.get("reason") or "is not safe")
    )
    more = int(reply["count"]) - 1
    return f"{name} {said}, {more:,} more" if more > 0 else f"{name} {said}"
