"""What a scripted box answers about backups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from remote.gate import reply

if TYPE_CHECKING:
    from tests.tui.fake import FakeClient

LOST = "run_lost_with_its_box"
"""A run that only the backup has."""
DESTINATIONS = [
    {"name": "s3", "kind": "s3", "where": "s3://runs/me"}, {"name": "disk", "kind": "folder", "where": "/mnt/backups"},
]  # fmt: skip


def snapshot(number: int, steps: list[int], age_s: float, state: str = "complete") -> dict[str, Any]:
    return {
        "number": number, "state": state, "reason": "" if state == "complete" else "COMPLETE is missing", "time": "",
        "age_s": age_s, "steps": steps, "bytes": 9.8e9 * len(steps), "run_state": "finished",
    }  # fmt: skip


def stored(name: str, *snapshots: dict[str, Any], here: bool = False, kind: str = "training_runs") -> dict[str, Any]:
    return {
        "kind": kind, "name": name, "identity": "0123456789abcdef", "parent": "", "destination": "s3",
        "same_disk": False, "here": here, "lag": None, "error": "", "snapshots": list(snapshots),
    }  # fmt: skip


STORED = [
    stored("run_gsm8k_demo", snapshot(3, [10, 20, 30, 40], 600.0), snapshot(2, [10, 20], 90_000.0), here=True),
    stored(LOST, snapshot(7, [100, 200, 300], 200_000.0)),
    stored("run_never_finished", snapshot(1, [], 400_000.0, "incomplete")),
    stored(LOST, snapshot(1, [300], 1_000.0), kind="archive/completed_runs"),
    stored("run_gsm8k_demo_addition", snapshot(1, [], 500.0), kind="eval_runs"),
]


def page_of(*records: dict[str, Any]) -> dict[str, Any]:
    """The only page of the history of a destination."""
    return {"records": list(records), "next": "", "count": len(records), "complete": True, "problems": []}


def _plan(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    steps = list(range(10, 110, 10))
    removed, kept = steps[: -params["keep"]], steps[-params["keep"] :]
    return {
        "run": params["run"], "host": "gpu-17", "destination": params["to"], "store": "s3://runs/me", "snapshot": 3,
        "read_back": 3, "read_back_age_s": 11_100.0,
        "removed": [{"path": f"training_state/step_{step}", "step": step, "bytes": 9.8e9} for step in removed],
        "kept": [
            {"path": f"training_state/step_{step}", "step": step, "reason": "one of the newest"} for step in kept
        ],
    }  # fmt: skip


def _work(command: str) -> Callable[[FakeClient, dict[str, Any]], dict[str, Any]]:
    """The answer to a command on backups, which starts a session."""

    def answer(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        run = params.get("as_name") or params.get("run", "all-runs").partition("--")[0]
        session, started = f"{command}_{run}", not params.get("dry_run")
        if started:
            client.sessions.append({"name": session, "run": run, "dead": False, "created": 1, "attached": 0})
            client.report()
        options = [
            f"--{key}={value}" for key, value in params.items() if key not in ("dry_run", "idempotency_key", "recall")
        ]
        argv = ["grpo-train", command, *options]
        return {"run": run, "session": session, "argv": argv, "engine": "", "started": started}

    return answer


def _through_the_gate(
    op: str, answer: Callable[[FakeClient, dict[str, Any]], dict[str, Any]]
) -> Callable[[FakeClient, dict[str, Any]], dict[str, Any]]:
    return lambda client, params: reply(op, {"ok": True, "result": answer(client, params)})


BACKUP_ANSWERS: dict[str, Any] = {
    "list_destinations": _through_the_gate("list_destinations", lambda client, params: {"destinations": DESTINATIONS}),
    "list_backups": _through_the_gate("list_backups", lambda client, params: {"backups": STORED}),
    "stored_history": _through_the_gate("stored_history", lambda client, params: page_of()),
    "plan_cleanup": _through_the_gate("plan_cleanup", _plan),
    "plan_back_up_all": {"runs": 11, "others": 8, "bytes": 3.2e9, "problems": []},
    "back_up": _work("backup"),
    "back_up_all": _work("backup"),
    "restore": _work("restore"),
    "archive": _work("archive"),
    "clean_up": _work("cleanup"),
    "verify_backup": _work("verify"),
}
