"""Whether this box can be terminated: the engine's answer, and how long it holds.

The engine asks the store about every run, so it is asked only when nothing is live, and again only after something
changed (:mod:`remote.agent.root_look`) or after the answer has aged. An answer counts only while the root looks exactly
as it did before the engine was asked; whatever is changed while it is asked makes it void. So an old answer can be a
wrong "no", never a wrong "yes".
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import Clock
from remote.agent.ask_engine import STORE_WAIT_S, ask_engine
from remote.agent.context import BoxContext
from remote.agent.root_look import look_at
from remote.protocol import RemoteError
from remote.protocol.termination import MAX_LISTED, SafeToTerminateReply, SafeToTerminateRequest

GOOD_S = 600.0
"""Backups may be removed from the store, where no file of this box changes."""
LIVE_GOOD_S = 30.0
"""A process that the engine found may end without changing a file."""
PAUSE_S = 15.0
AGAIN_S = 10.0
SHARE = 20.0
"""The engine is at work for at most one part in this many of the time, and asked again PAUSE_S later at the earliest;
likewise looks at the root, AGAIN_S."""


@dataclass(frozen=True)
class _Known:
    """The last answer of the engine."""

    asked_at: float
    """By the monotonic clock, before the engine was started."""
    cost_s: float
    signature: str
    """Of the root before and after; "" where these differ."""
    verdict: dict[str, Any] | None
    error: RemoteError | None


class _Checker:
    """Asks the engine about one root; one request after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: _Known | None = None

    def answer(self, box: BoxContext, *, now: bool) -> SafeToTerminateReply:
        with self._lock:
            clock = box.clock
            began = clock.monotonic()
            look = look_at(box.root)
            again_s = max(AGAIN_S, SHARE * (clock.monotonic() - began))
            if look.live and not now:
                verdict = {"safe": False, "kept": "", "obstacles": [*look.live]}
                return _reply(verdict, clock.monotonic() - began, again_s, whole=False)
            known = self._known
            if known is None or now or not self._holds(known, look.signature, clock):
                if known is not None and not now and began - known.asked_at < max(PAUSE_S, SHARE * known.cost_s):
                    return _reply(_CHANGED, clock.monotonic() - known.asked_at, again_s, whole=False)
                known = self._known = _ask(box, look.signature)
        if known.error is not None:
            raise known.error
        assert known.verdict is not None
        return _reply(known.verdict, clock.monotonic() - known.asked_at, again_s, whole=True)

    @staticmethod
    def _holds(known: _Known, signature: str, clock: Clock) -> bool:
        verdict = known.verdict or {"obstacles": []}
        is_live = any(row.get("code") == "live" for row in verdict["obstacles"])
        good_s = max(LIVE_GOOD_S if is_live else GOOD_S, SHARE * known.cost_s)
        return known.signature == signature and clock.monotonic() - known.asked_at < good_s


_CHANGED = {
    "safe": False,
    "kept": "",
    "obstacles": [
        {"kind": "", "name": "this box", "code": "changed", "reason": "it changed since it was checked", "command": ""}
    ],
}


def _ask(box: BoxContext, before: str) -> _Known:
    """Ask the engine, between two looks at the root."""
    began = box.clock.monotonic()
    verdict, error = None, None
    try:
        option = ["--persistent"] if box.settings.persistent else []
        verdict = _checked(ask_engine(box, ["safe-to-terminate", *option], STORE_WAIT_S))
    except RemoteError as refusal:
        error = refusal
    after = look_at(box.root)
    is_same = after.signature == before
    if verdict is not None and (after.live or not is_same):
        rows = [*after.live, *verdict["obstacles"]] or _CHANGED["obstacles"]
        verdict = {"safe": False, "kept": "", "obstacles": rows}
    return _Known(began, box.clock.monotonic() - began, before if is_same else "", verdict, error)


def _checked(answer: Any) -> dict[str, Any]:
    """The engine's verdict. Raises RemoteError for one that says two things at once."""
    safe = answer.get("safe") if isinstance(answer, dict) else None
    kept, rows = (answer.get(key) for key in ("kept", "obstacles")) if isinstance(safe, bool) else (None, None)
    if not isinstance(kept, str) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RemoteError("no_answer", "grpo-train safe-to-terminate did not print a verdict")
    if safe and kept != "mount" and (kept != "backup" or rows):
        raise RemoteError("no_answer", "grpo-train safe-to-terminate contradicts itself")
    return {"safe": safe, "kept": kept, "obstacles": rows}


def _reply(verdict: dict[str, Any], age_s: float, again_s: float, *, whole: bool) -> SafeToTerminateReply:
    rows = verdict["obstacles"]
    return {
        "safe": verdict["safe"],
        "kept": verdict["kept"],
        "obstacles": rows[:MAX_LISTED],
        "count": len(rows),
        "whole": whole,
        "age_s": age_s,
        "again_s": again_s,
    }


_checkers: dict[Path, _Checker] = {}


def safe_to_terminate(box: BoxContext, request: SafeToTerminateRequest) -> SafeToTerminateReply:
    """Whether this box can be terminated. Raises RemoteError, with the engine's code.

    To find out whether a store can be written and is on another disk, the engine writes a marker and removes it, which
    a client that only reads does not have done.
    """
    if box.settings.readonly:
        raise RemoteError("read_only", "not checked with --readonly: the check writes a marker to the store")
    return _checkers.setdefault(box.root, _Checker()).answer(box, now=request.now)
