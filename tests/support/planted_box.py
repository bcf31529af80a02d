"""Boxes whose every text holds sequences that steer a terminal: a hostile agent, and run directories for a real one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import utc_now
from tests.support.any_json import GPU, LOG_ROWS, MARKUP, PLANTED, RESULTS, ROW, SESSION
from tests.support.hostile_box import HostileBox

NAME = "run" + PLANTED.replace("\x00", "").replace("/", "")
BYTES = PLANTED.encode("utf-8", "surrogatepass") + b"\x9b31m\x9d0;planted\x9c\xff"


def planted(value: Any) -> Any:
    """A JSON value with the sequences in each of its texts."""
    if isinstance(value, str):
        return value + PLANTED + MARKUP
    if isinstance(value, list):
        return [planted(item) for item in value]
    return {key: planted(item) for key, item in value.items()} if isinstance(value, dict) else value


def row(name: str, state: str, **more: Any) -> dict[str, Any]:
    """A run that passes the gate: what must be a name is one, and every other text is planted."""
    error = planted({"summary": "boom", "console_tail": ["line"]})
    return {**ROW, "run": name, "state": state, "error": error, **more}


def talk(box: HostileBox) -> None:
    """Send every kind of text, with one run that crashes after the first log line was consumed; answer all requests."""
    facts = {"name": PLANTED, "cpu_count": 2, "root": "/r" + PLANTED, "python": PLANTED}
    box.greet(agent=PLANTED, host=facts, engine={"version": PLANTED, "format": 99})
    runs = [row("live", "running"), row("other", "running"), row("failed", "crashed"), row("odd", "un" + PLANTED),
            planted(ROW), {**ROW, "run": NAME}]  # fmt: skip
    update(box, "runs", {"runs": runs})
    update(box, "sessions", {"sessions": [planted(SESSION), {"name": "live", "run": "live"}, {"name": NAME}]})
    update(box, "gpu", {"gpus": [planted(GPU), GPU], "note": PLANTED})
    for log, rows in LOG_ROWS.items():
        lines = [json.dumps(planted(line)) for line in rows] + [json.dumps({**line, "step": 6}) for line in rows]
        path = {"train_log": "train_log.jsonl", "events": "events.jsonl", "rollouts": "rollouts.jsonl"}[log]
        box.say({"type": "data", "id": box.log(path), "offset": 0, "text": "\n".join(lines) + "\n"})
    console = {"type": "data", "id": box.log("console.log"), "offset": 0, "text": f"printed{PLANTED}\n" * 3}
    box.say({**console, "text": console["text"].encode("utf-8", "replace").decode()})
    answered: set[int] = set()
    while True:
        request = box.hear(lambda frame: frame["type"] == "request" and frame["id"] not in answered)
        answered.add(request["id"])
        op, reply = request["op"], {"type": "response", "id": request["id"]}
        if op == "stop":  # every run ends, and the topics fail
            update(box, "runs", {"runs": [row("live", "crashed"), row("other", "running")]})
            for topic in ("runs", "gpu"):
                error = {"code": PLANTED, "message": f"gone{PLANTED}{MARKUP}", "hint": PLANTED}
                box.say({"type": "update", "id": box.topic(topic), "error": error})
        if op in ("stop", "evaluate", "resume", "kill"):
            box.say({**reply, "ok": False, "error": planted({"code": "io", "message": "refused", "hint": "do"})})
        elif op == "launch" or op not in RESULTS:
            box.say({**reply, "ok": True, "result": planted(RESULTS["launch"])})
        else:
            box.say({**reply, "ok": True, "result": answer(op)})


def answer(op: str) -> dict[str, Any]:
    """The reply of an operation: rows with names that pass, beside rows whose names do not."""
    result = planted(RESULTS[op])
    good = RESULTS[op]
    for key, value in good.items():
        if isinstance(value, list) and value and isinstance(value[0], dict) and "name" in value[0]:
            result[key] = [{**planted(value[0]), "name": value[0]["name"]}, *result[key]]
        elif key == "checkpoints":
            result[key] = [*value, {**planted(value[0]), "aliases": []}]
    return dict(result)


def update(box: HostileBox, topic: str, value: Any) -> None:
    box.say({"type": "update", "id": box.topic(topic), "value": value})


def break_app(where: str) -> None:
    """Make the app fail with a message that holds planted text: while it draws, in a request, or at its end."""
    from grpo_tui import background
    from grpo_tui.app import GrpoApp
    from grpo_tui.views.home.runs import RunsPanel

    def fail(*_: object) -> Any:
        raise ValueError("broken" + PLANTED.replace("\x00", ""))

    async def fail_later(*_: object) -> None:
        fail()

    if where == "drawing":
        RunsPanel.render_line = fail  # type: ignore[method-assign]
    elif where == "request":
        background.examine_box = fail_later  # type: ignore[assignment]
    else:
        GrpoApp.on_unmount = fail  # type: ignore[method-assign]


def refuse(box: HostileBox) -> None:
    """Print to standard error and exit before the hello."""
    box.hear(lambda frame: frame["type"] == "hello")
    sys.stderr.buffer.write(b"no" + BYTES + MARKUP.encode())
    sys.stderr.buffer.flush()
    raise OSError  # ends the process


def write_run(root: Path, name: str, **status: Any) -> Path:
    """A run directory whose texts are planted. A field of ``status`` is planted unless it is the state."""
    folder = root / "training_runs" / name
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    launch = {"time": "2026-11-22T08:00:00.000Z", "run": name, "argv": ["x"], "config_text": "a: " + PLANTED}
    (folder / "launch.json").write_text(json.dumps({**planted(launch), "time": launch["time"]}))
    fields = {"host": "elsewhere", "boot_id": "x", "updated_at": utc_now(), "stage": "train", **status}
    (folder / "status.json").write_text(json.dumps(fields))
    for log, rows in LOG_ROWS.items():
        lines = [json.dumps(planted(line)) for line in rows] + [json.dumps({**line, "step": 6}) for line in rows]
        (folder / "logs" / f"{log}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "logs" / "console.log").write_bytes(b"printed" + BYTES + b"\n")
    (folder / "config.yaml").write_bytes(b"run: {}\n# " + BYTES + b"\r\nmodel: {}\r\n")
    return folder
