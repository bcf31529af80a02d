"""What is said about a GPU that does nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from grpo_tui.box.gpus import BoxHistory, advice, unlisted

OURS, THEIRS = {"pid": 7.0, "run": "night"}, {"pid": 8.0, "name": "python3"}


def live(name: str, nproc: int | None = 2, host: str = "") -> Any:
    return SimpleNamespace(name=name, nproc=nproc, host=host)


@pytest.mark.parametrize(
    ("gpu", "runs", "said"),
    [
        ({"free": False}, [], "held by a process that is not listed, such as one of another container"),
        ({"processes": [THEIRS]}, [], "held by python3 (pid 8), which is not ours"),
        ({"processes": [{"pid": 8.0}]}, [], "held by a process (pid 8), which is not ours"),
        ({"processes": [OURS]}, [live("night")], "night is waiting: LOGS shows its logs"),
        ({"processes": [OURS]}, [], "night is over: kill pid 7 in a shell on the box"),
        ({"free": True}, [], "HOME, then LAUNCH launches a run"),
        ({"free": True}, [live("night", nproc=1)], "STOP stops night, RESUME resumes it on 2 GPUs"),
        ({"free": True}, [live("night", nproc=1, host="another")], ""),
        ({"free": True}, [live("night")], ""),
    ],
)
def test_what_to_do_about_it(gpu: dict[str, Any], runs: list[Any], said: str) -> None:
    store: Any = SimpleNamespace(live_runs=lambda: runs, gpus=[{}, {}])
    assert advice(store, gpu, str.upper) == said


@pytest.mark.parametrize(("free", "said"), [(True, ""), (None, "use not known"), (False, "in use, process not listed")])
def test_what_is_not_listed(free: bool | None, said: str) -> None:
    assert unlisted({"free": free}) == said


def test_times_without_a_link_are_kept() -> None:
    clock = [100.0]
    store: Any = SimpleNamespace(now=lambda: clock[0], gpus=[], topic_problem=lambda topic: "")
    history = BoxHistory()
    for now, is_connected in ((100.0, True), (110.0, False), (115.0, False), (130.0, True), (150.0, False)):
        clock[0], store.connected = now, is_connected
        history.take(store)
    assert list(history.lost) == [(110.0, 130.0)]
    assert history.lost_within(120.0, 400.0, 170.0) == [(120.0, 130.0), (150.0, 170.0)], "the last gap continues"
