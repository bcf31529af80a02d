"""Answers to requests, from the indexes of a box, and which indexes are open."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.curves import BEFORE
from grpo_train.run_dir.verdict_rules import judge_run
from remote.agent.follow import open_log, resolve_log
from remote.index import rollout_answers, store
from remote.index.lines import MAX_LINE, read_line
from remote.index.log_answers import LogAnswers
from remote.index.log_index import LogIndex, OpenLog
from remote.index.rollouts import EvaluationIndex, RolloutIndex
from remote.index.series import MAX_X, axis_of, level_changes, levels_before, metrics, nearest, run_seconds, series
from remote.index.store import Busy, IndexStore, NoIndex, Unwritable
from remote.index.train_log import OFFSET, STEP, KnownColumns, Probes, TrainLogIndex
from remote.protocol import RemoteError
from remote.protocol.logs import (
    LevelChangesRequest,
    MetricsRequest,
    SearchRolloutsRequest,
    SeriesRequest,
    ShowStepRequest,
)
from remote.protocol.runs import VerdictRequest

MAX_BYTES = 4 << 20
"""Of a summary."""
MAX_CONDITIONS = 64
MAX_TEXT = 200
NOT_COMPARED = ("weights", "seed")
"""Of the key of the samples: the weights are what is compared, the seed only picks the random numbers."""


def conditions(root: Path, folder: str, follow_links: bool) -> dict[str, Any]:
    """The problems, decoding parameters and grader of the evaluated step in ``folder``, one value a name; empty where
    they are not recorded."""
    try:
        descriptor = open_log(resolve_log(root, f"{folder}/summary.json"), root, follow_links)
    except (OSError, RemoteError):
        return {}
    try:
        key = json.loads(os.pread(descriptor, MAX_BYTES, 0)).get("key")
        found: dict[str, Any] = {}
        for part in ("samples", "grading"):
            values = key.get(part)
            if isinstance(values, dict):
                _flatten(found, "", {name: one for name, one in values.items() if name not in NOT_COMPARED})
        return dict(list(found.items())[:MAX_CONDITIONS])
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    finally:
        os.close(descriptor)


def _flatten(found: dict[str, Any], prefix: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        full = f"{prefix}{name}"[:MAX_TEXT]
        if isinstance(value, dict):
            _flatten(found, f"{full}.", value)
        elif isinstance(value, str) and value.isprintable():
            found[full] = value[:MAX_TEXT]
        elif value is None or (isinstance(value, bool | int | float) and abs(value) < 1e15):
            found[full] = value
        else:
            found[full] = json.dumps(value)[:MAX_TEXT]


MAX_OPEN = 64
"""Indexes whose state is kept in memory."""
PRUNE_EVERY_S = 10.0
"""Pruning looks at every file of every index; the verdicts on a list of runs make hundreds of new ones at once."""
Index = TypeVar("Index", bound=LogIndex)
Key = tuple[str, str, bool]


class Shelf(Generic[Index]):
    """The indexes of one kind of log."""

    def __init__(self, kind: type[Index], places: list[Path], clock: Clock) -> None:
        self._kind, self._places, self._clock = kind, places, clock
        self._indexes: OrderedDict[Key, Index] = OrderedDict()
        self._in_progress: OrderedDict[Key, None] = OrderedDict()
        self._failed: dict[Path, str] = {}
        """Places that did not accept an index, and why."""
        self._pruned_at: dict[Path, float] = {}

    @contextmanager
    def opened(
        self, root: Path, run: Path, follow_links: bool, goes_on: Callable[[], bool]
    ) -> Iterator[tuple[Index, OpenLog | None]]:
        """A run's index, extended while ``goes_on()`` and held, and its log; None if there is no log.

        Raises RemoteError, also where no place accepts the index, and OSError for a log that cannot be read.
        """
        key = (str(root), str(run), follow_links)
        index = self._indexes.get(key) or self._kind(RunDir(run), root, follow_links)
        self._indexes[key] = index
        self._indexes.move_to_end(key)
        while len(self._indexes) > MAX_OPEN:
            self._indexes.popitem(last=False)
        self._in_progress.pop(key, None)
        source = index.open()
        if source is None:
            index.forget()
            yield index, None
            return
        with closing(source), self._extended(index, source, goes_on):
            if not index.whole:
                self._in_progress[key] = None
            yield index, source

    def _extended(self, index: Index, source: OpenLog, goes_on: Callable[[], bool]) -> ExitStack:
        """Hold an index in the first place that accepts it, extended."""
        for place in self._places:
            try:
                if place not in self._failed:
                    return self._extended_in(place, index, source, goes_on)
            except Unwritable as error:
                self._failed[place] = str(error)
        reasons = "; ".join(self._failed.values())
        self._failed.clear()  # the next request tries again
        raise RemoteError(
            "no_index", f"no folder accepts the index: {reasons}", "make room in one of them, or set TMPDIR"
        )

    def _extended_in(self, place: Path, index: Index, source: OpenLog, goes_on: Callable[[], bool]) -> ExitStack:
        """As ``_extended``. Raises Unwritable."""
        store.check(place)
        name = store.folder_name(self._kind.file, source.device, source.inode)
        for folder in (place / name, place / f"{name}-{os.getpid()}"):  # its own where another one holds the first
            if not folder.exists():
                self._prune(place)
            index.store = IndexStore(folder, clock=self._clock)
            with ExitStack() as stack:
                try:
                    stack.enter_context(index.store.locked())
                except Busy:
                    continue
                try:
                    index.advance(source, goes_on)
                except Unwritable:
                    index.store.clear()  # the logs may need the room
                    raise
                return stack.pop_all()
        raise Unwritable(f"{folder} is held by another process")

    def _prune(self, place: Path) -> None:
        now = self._clock.monotonic()
        if now >= self._pruned_at.get(place, -math.inf) + PRUNE_EVERY_S:
            self._pruned_at[place] = now
            store.prune_indexes(place)

    @property
    def is_busy(self) -> bool:
        """Whether an index is in progress."""
        return bool(self._in_progress)

    def is_busy_beside(self, root: Path, run: Path, follow_links: bool) -> bool:
        """Whether the index of another run is in progress."""
        return bool(self._in_progress.keys() - {(str(root), str(run), follow_links)})

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Extend the index that was asked for last while ``goes_on()``.

        Raises RemoteError and OSError; that index is given up.
        """
        root, run, follow_links = next(reversed(self._in_progress))
        with self.opened(Path(root), Path(run), follow_links, goes_on):
            pass


BUDGET_S = 0.15
"""Indexing before an answer: a small log is whole at once."""
LOG_BUDGET_S = 0.03
"""The same for what is known of a whole log, which goes on while nobody waits."""
MAX_PROBED = 8
"""Logs in progress whose probes are kept."""


LATER = {"is_known": False, "verdict": None}
"""No verdict yet. Those on a list of runs wait for an index in progress, which somebody may be waiting for."""
SEARCH_S = 0.25
"""Of one page of a search."""
Handler = Callable[[Index, "OpenLog | None", Any], dict[str, Any]]


class IndexAnswers:
    """All indexes of this process, and what can be asked of them."""

    def __init__(self, places: list[Path], clock: Clock = CLOCK) -> None:
        self._train_logs = Shelf(TrainLogIndex, places, clock)
        self._rollouts = Shelf(RolloutIndex, places, clock)
        self._evaluations = Shelf(EvaluationIndex, places, clock)
        self._probes: OrderedDict[tuple[int, int], Probes] = OrderedDict()
        self._logs = LogAnswers(clock)
        self._clock = clock
        self._of_train_logs: dict[str, Handler[TrainLogIndex]] = {
            "series": self._series,
            "metrics": self._metrics,
            "show_step": self._show_step,
            "level_changes": self._level_changes,
            "verdict": _verdict,
        }
        self._of_rollouts: dict[str, Handler[RolloutIndex]] = {
            "rollout_steps": rollout_answers.rollout_steps,
            "rollout_step": rollout_answers.rollout_step,
            "problem_changes": rollout_answers.problem_changes,
            "samples": rollout_answers.samples,
            "search_rollouts": self._search,
        }

    @property
    def is_busy(self) -> bool:
        """Whether an index or a scan is in progress."""
        return self._logs.is_busy or any(shelf.is_busy for shelf in self._shelves)

    @property
    def _shelves(self) -> tuple[Shelf[Any], ...]:
        return self._train_logs, self._evaluations, self._rollouts

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Extend an index while ``goes_on()``. A failure ends that; the next request for it reports why."""
        if self._logs.is_busy:
            self._logs.work(goes_on)
            return
        try:
            next(shelf for shelf in self._shelves if shelf.is_busy).work(goes_on)
        except (RemoteError, OSError) as error:
            print(f"index: {error}", file=sys.stderr)

    def answer(self, op: str, root: Path, run: Path, follow_links: bool, request: Any) -> dict[str, Any]:
        """The reply to a request. Raises RemoteError and OSError."""
        if op in self._logs.handlers:
            return self._logs.handlers[op](root, run, follow_links, request, within(LOG_BUDGET_S, self._clock))
        folder: str = getattr(request, "folder", "")  # of an evaluated step
        if op in self._of_rollouts and folder:
            step = Path(resolve_log(root, folder))
            found = self._answer(self._evaluations, self._of_rollouts[op], root, step, follow_links, request)
            if op == "rollout_step":
                found["conditions"] = conditions(root, request.folder, follow_links)
            return found
        if op in self._of_rollouts:
            return self._answer(self._rollouts, self._of_rollouts[op], root, run, follow_links, request)
        if op == "verdict" and self._train_logs.is_busy_beside(root, run, follow_links):
            return {"run": request.run, **LATER}
        return self._answer(self._train_logs, self._of_train_logs[op], root, run, follow_links, request)

    def _search(self, index: RolloutIndex, source: OpenLog | None, request: SearchRolloutsRequest) -> dict[str, Any]:
        return rollout_answers.search(index, source, request, within(SEARCH_S, self._clock))

    def _answer(
        self, shelf: Shelf[Index], handler: Handler[Index], root: Path, run: Path, follow_links: bool, request: Any
    ) -> dict[str, Any]:
        for _ in range(2):
            with shelf.opened(root, run, follow_links, within(BUDGET_S, self._clock)) as (index, source):
                try:
                    return {"run": request.run, **handler(index, source, request)}
                except NoIndex:
                    index.reset()  # it was damaged from outside: made anew
        raise RemoteError("no_index", f"the index of {run} is damaged again and again")

    def _snapshot(self, index: TrainLogIndex, source: OpenLog | None) -> KnownColumns:
        probes = None
        if source is not None and not index.whole:
            key = source.device, source.inode
            probes = self._probes.get(key)
            if probes is None or not probes.fit(source, index.ranges):
                probes = self._probes[key] = Probes(source, index.ranges)
            self._probes.move_to_end(key)
            while len(self._probes) > MAX_PROBED:
                self._probes.popitem(last=False)
        elif source is not None:
            self._probes.pop((source.device, source.inode), None)
        return KnownColumns(index, probes)

    def _series(self, index: TrainLogIndex, source: OpenLog | None, request: SeriesRequest) -> dict[str, Any]:
        snapshot = self._snapshot(index, source)
        return {**_common(snapshot), "cursor": snapshot.cursor.to_json(), **series(snapshot, request)}

    def _metrics(self, index: TrainLogIndex, source: OpenLog | None, request: MetricsRequest) -> dict[str, Any]:
        snapshot = self._snapshot(index, source)
        return {**_common(snapshot), **metrics(snapshot)}

    def _show_step(self, index: TrainLogIndex, source: OpenLog | None, request: ShowStepRequest) -> dict[str, Any]:
        snapshot = self._snapshot(index, source)
        axis, offsets = axis_of(snapshot, request.x), snapshot.column(OFFSET)
        if source is None or not axis.xs:
            raise RemoteError("no_step", f"{request.run} has not logged a step yet")
        xs = axis.xs
        place = nearest(xs, request.at)
        row = place if axis.order is None else axis.order[place]
        seconds = run_seconds(snapshot)[row]
        step = snapshot.at(STEP, row)
        line = os.pread(source.descriptor, MAX_LINE + 1, offsets[row]).partition(b"\n")[0]
        found = read_line(line)
        if found is None:
            raise RemoteError("unreadable", f"step {step:.0f} of {request.run} cannot be read any more")
        order = axis.order if axis.order is not None else range(len(xs))
        rows = order[max(0, place - BEFORE) : place]
        before = levels_before(snapshot, [name for name in request.metrics if name in snapshot.names], rows)
        return {
            "state": "whole" if index.whole else "coarse",
            "step": step,
            "x": xs[place],
            **({"seconds": seconds} if abs(seconds) <= MAX_X else {}),
            **({"before": before} if before else {}),
            **({"before_step": snapshot.at(STEP, rows[0])} if rows else {}),
            "offset": offsets[row],
            "row": found,
            "previous": xs[place - 1] if place else None,
            "next": xs[place + 1] if place + 1 < len(xs) else None,
        }

    def _level_changes(
        self, index: TrainLogIndex, source: OpenLog | None, request: LevelChangesRequest
    ) -> dict[str, Any]:
        snapshot = self._snapshot(index, source)
        return {"state": _common(snapshot)["state"], "levels": level_changes(snapshot, request)}


def _verdict(index: TrainLogIndex, source: OpenLog | None, request: VerdictRequest) -> dict[str, Any]:
    if source is not None and not index.whole:
        return {**LATER}
    rows = KnownColumns(index, None)
    found = judge_run(index.run, rows.column(STEP), rows.column)
    return {"is_known": True, "verdict": found and found.to_json()}


def within(seconds: float, clock: Clock, also: Callable[[], bool] = lambda: True) -> Callable[[], bool]:
    """Whether the seconds from now on have not passed and ``also()`` holds."""
    deadline = clock.monotonic() + seconds
    return lambda: clock.monotonic() < deadline and also()


def _common(snapshot: KnownColumns) -> dict[str, Any]:
    return {
        "state": "whole" if snapshot.is_whole else "coarse",
        "progress": snapshot.progress,
        "rows": snapshot.rows,
        "skipped": snapshot.skipped,
        "offset": snapshot.offset,
    }
