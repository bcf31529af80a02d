"""Configuration and last metrics of the runs in the list, as far as names, columns and filter need them. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grpo_train.run_dir.files import to_float
from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import LIVE_S, Asking
from grpo_tui.model.run_row import RunRow
from remote.protocol.listed_runs import MAX_FACTS
from remote.protocol.rows import UNREADABLE

MOST_RUNS = 2_000
"""Newest runs of which anything is asked, so that memory stays bounded."""
MetricsState = tuple[Any, Any, tuple[str, ...]]
"""Start and step of a run, and the metrics that were asked for then."""


class RunFacts:
    """What the box said about each run, and what to ask next."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.configs: dict[str, Mapping[str, Any]] = {}
        """Run to ``section.key`` to value."""
        self.wanted: set[str] = set()
        """Metrics that a column or the filter needs."""
        self.version = 0
        self.asking = Asking(now)
        self._metrics: dict[str, dict[str, float | None]] = {}
        self._known: dict[str, object] = {}
        """Run to the state of it that its configuration was read in, …"""
        self._measured: dict[str, MetricsState] = {}
        """… and its metrics."""
        self._pending: dict[str, tuple[object, MetricsState]] = {}
        self._pause = 0.0

    def metric(self, run: str, name: str) -> float | None:
        """The last value of a metric, if it was asked for."""
        return self._metrics.get(run, {}).get(name)

    def config(self, run: str, key: str) -> Any:
        """A value of a run's configuration, by ``section.key`` or by ``key`` where one section has it; None without."""
        config = self.configs.get(run)
        if not config:
            return None
        if key in config:
            return config[key]
        found = [name for name in config if name.endswith(f".{key}")] if "." not in key else []
        return config[found[0]] if len(found) == 1 else None

    def has_key(self, key: str) -> bool:
        """Whether a run's configuration has a key."""
        return any(self.config(run, key) is not None or key in config for run, config in self.configs.items())

    def keys(self) -> list[str]:
        """All keys of the configurations."""
        return list(dict.fromkeys(key for config in self.configs.values() for key in config))

    def has_answered(self, rows: Sequence[RunRow]) -> bool:
        """Whether the box has sent configuration and metrics of each of these runs, as far as it is asked for them."""
        rows = [row for row in rows[:MOST_RUNS] if _is_asked_for(row)]
        wanted = tuple(sorted(self.wanted))
        return all(
            row.name in self._known and (not wanted or self._measured.get(row.name, ("", 0, ()))[-1] == wanted)
            for row in rows
        )

    def request(self, rows: Sequence[RunRow]) -> dict[str, Any] | None:
        """The parameters of the ``run_facts`` request to send now, which is then in flight; None if there is none."""
        if not self.asking.is_due(self._pause):
            return None
        rows = [row for row in rows[:MOST_RUNS] if _is_asked_for(row)]
        metrics = sorted(self.wanted)
        due = [row for row in rows if self._known.get(row.name) != _config_state(row)][:MAX_FACTS]
        config = bool(due)
        if not due and metrics:
            due = [row for row in rows if self._measured.get(row.name) != self._metrics_state(row)][:MAX_FACTS]
        if not due:
            return None
        self.asking.start("facts")
        self._pending = {row.name: (_config_state(row), self._metrics_state(row)) for row in due}
        return {"runs": [row.name for row in due], "metrics": metrics, "config": config}

    def answer(self, params: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight."""
        self.asking.end("facts")
        self._pause = 0.0 if params["config"] else LIVE_S  # live runs log on: their metrics are due again at once
        facts = {row["run"]: row for row in reply["facts"] if UNREADABLE not in row}
        for run, (config_state, metrics_state) in self._pending.items():
            row = facts.get(run, {})
            if params["config"]:
                self._known[run] = config_state
                self.configs[run] = {**reply["same"], **row.get("config", {})} if row else {}
            if params["metrics"] or not self.wanted:
                self._measured[run] = metrics_state
                self._metrics[run] = {key: to_float(value) for key, value in row.get("metrics", {}).items()}
        self.version += 1

    def keep(self, runs: Iterable[str]) -> None:
        """Forget the runs that are not listed any more."""
        listed = set(runs)
        for known in (self.configs, self._metrics, self._known, self._measured):
            for run in [run for run in known if run not in listed]:
                del known[run]

    def _metrics_state(self, row: RunRow) -> MetricsState:
        return (row.started, row.step, tuple(sorted(self.wanted)))


def _is_asked_for(row: RunRow) -> bool:
    return row.layout == "run" and not row.is_unreadable


def _config_state(row: RunRow) -> object:
    """A run that is starting has not written its configuration yet."""
    return (row.started, row.state == "starting" and not row.step)
