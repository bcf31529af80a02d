"""The verdicts on the runs of this box, for the list: made by the process of indexes, one after the other."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_train.run_dir import LIVE_STATES, RunDirError
from remote.agent import index
from remote.agent.box import BoxContext
from remote.protocol import RemoteError

LIVE_EVERY_S = 5.0
"""A run that logs every second is judged again this often …"""
SHARE = 100
"""… or less often: shortest pause, as a multiple of the time that the verdict took."""
MOST = 1_000
"""The newest runs, which are judged; an index of the log of each is made."""
AGAIN_S = 1.0
"""A log that is being read is asked for again after this time."""


class Verdicts:
    """Run name to its verdict. A run that is not judged yet, or about which it is too early to say, has none."""

    def __init__(self, box: BoxContext) -> None:
        self._box, self._clock = box, box.clock
        self._judged: dict[str, tuple[object, dict[str, Any] | None]] = {}
        """Run name to (what its verdict was made of, the verdict)."""
        self._not_before: dict[str, float] = {}
        self._lock = threading.Lock()
        self._queue: dict[str, object] = {}
        self._at_work = ""
        """The run that is being judged."""
        self._thread: threading.Thread | None = None

    def results(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The verdicts that are known. What has changed since is judged in the order of the rows, live runs first."""
        rows = [row for row in rows if row.get("layout") == "run" and row.get("step")][:MOST]
        rows.sort(key=lambda row: row["state"] not in LIVE_STATES)
        now = self._clock.monotonic()
        with self._lock:
            names = {row["run"] for row in rows}
            self._judged = {name: found for name, found in self._judged.items() if name in names}
            self._not_before = {name: at for name, at in self._not_before.items() if name in names}
            self._queue = {
                row["run"]: made_of
                for row in rows
                if row["run"] != self._at_work
                and (made_of := _made_of(row)) != self._judged.get(row["run"], (None,))[0]
                and now >= self._not_before.get(row["run"], 0.0)
            }
            if self._queue and self._thread is None:
                self._thread = threading.Thread(target=self._judge_all, name="verdicts", daemon=True)
                self._thread.start()
            return {name: found for name, (_, found) in self._judged.items() if found is not None}

    def join(self, seconds: float) -> None:
        """Wait until all that is queued is judged."""
        if (thread := self._thread) is not None:
            thread.join(seconds)

    def _judge_all(self) -> None:
        while True:
            with self._lock:
                self._at_work = run = next(iter(self._queue), "")
                if not run:
                    self._thread = None
                    return
                made_of = self._queue.pop(run)
            began = self._clock.monotonic()
            is_known, found = self._judge(run)
            ended = self._clock.monotonic()
            with self._lock:
                if is_known:
                    self._judged[run] = made_of, found
                else:
                    self._queue.setdefault(run, made_of)  # behind the others
                pause = max(LIVE_EVERY_S, SHARE * (ended - began)) if is_known else AGAIN_S
                self._not_before[run] = ended + pause
            if not is_known:
                self._clock.sleep(AGAIN_S)

    def _judge(self, run: str) -> tuple[bool, dict[str, Any] | None]:
        """Whether the verdict is known, and it; a run that cannot be read has none until it changes."""
        try:
            reply = index.request(self._box, "verdict", run, {"run": run})
        except Exception as error:  # a defect of ours must not end the verdicts on the others
            if not isinstance(error, (RemoteError, RunDirError, OSError)):
                traceback.print_exc()
            return True, None
        return reply["is_known"], reply["verdict"]


def _made_of(row: Mapping[str, Any]) -> object:
    held_out = row.get("held_out") or {}
    return row["step"], row.get("logged_at"), row["state"], row.get("total_steps"), tuple(held_out.values())
