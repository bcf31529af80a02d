"""Who uses a GPU whose processes are not listed, and what to do about one that idles, in one short line. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo_tui.model.formatting import shortened
from grpo_tui.model.store import Store

IDLE_TOLD_S = 300.0
"""An idle GPU is pointed out from then on."""
NAME = 24
"""Cells of a run's name."""


def unlisted(gpu: Mapping[str, Any]) -> str:
    """What there is to say about the use of a GPU without a listed process; "" for one that is free."""
    if gpu.get("free"):
        return ""
    return "use not known" if gpu.get("free") is None else "in use, process not listed"


def advice(store: Store, gpu: Mapping[str, Any], key: Callable[[str], str]) -> str:
    """What a person can do about an idle GPU; "" where the app does not know. ``key``: text of an action's key."""
    processes = [process for process in gpu.get("processes") or () if process.get("pid") is not None]
    live = store.live_runs()
    if not processes and gpu.get("free") is False:
        return "held by a process that is not listed, such as one of another container"
    if processes:
        runs = [str(process["run"]) for process in processes if process.get("run")]
        if not runs:
            one = processes[0]
            return f"held by {one.get('name') or 'a process'} (pid {one['pid']:.0f}), which is not ours"
        if runs[0] in {row.name for row in live}:
            return f"{shortened(runs[0], NAME)} is waiting: {key('logs')} shows its logs"
        return f"{shortened(runs[0], NAME)} is over: kill pid {processes[0]['pid']:.0f} in a shell on the box"
    if not live:
        return f"{key('home')}, then {key('launch')} launches a run"
    count = len(store.gpus or ())
    few = next((row for row in live if row.nproc is not None and row.nproc < count and not row.host), None)
    if few is None:
        return ""
    name = shortened(few.name, NAME)
    return f"{key('stop')} stops {name}, {key('resume')} resumes it on {count} GPUs"
