"""Answers of the scripted box about questions to checkpoints."""

from __future__ import annotations

from typing import Any

ASK_ID = "a" * 32
ANSWERS_FILE = f"training_runs/.asks-0/{ASK_ID}/answers.jsonl"


def _open(client: Any, params: dict[str, Any]) -> dict[str, Any]:
    session = f"ask_{params['run']}"
    client.sessions = [row for row in client.sessions if row["name"] != session]
    created = 1 + len(client.asked_for("open_ask"))
    row = {"name": session, "run": params["run"], "dead": False, "created": created, "attached": 0}
    client.sessions.append(row)
    client.report()
    client.files[ANSWERS_FILE] = b""
    argv = ["/opt/grpo-train", "generate"]
    return {
        "run": params["run"], "session": session, "argv": argv, "engine": "PATH", "started": True, "ask": ASK_ID,
        "answers": ANSWERS_FILE,
    }  # fmt: skip


def _ask(client: Any, params: dict[str, Any]) -> dict[str, Any]:
    return {"question": f"{len(client.asked_for('ask')):032x}"}


ASK_ANSWERS: dict[str, Any] = {"open_ask": _open, "ask": _ask, "cancel_answer": {}, "close_ask": {"left": []}}


def question_id(number: int) -> str:
    """Id of the n-th question, from 1."""
    return f"{number:032x}"


def ready(*names: str) -> list[dict[str, Any]]:
    """The first events of a process."""
    return [{"event": "starting"}, {"event": "ready", "checkpoints": list(names), "device": "cuda:0"}]


def question(id: str, text: str, index: int | None = None, answer: str = "") -> dict[str, Any]:
    return {"event": "question", "id": id, "question": text, "index": index, "answer": answer, "prompt": text}


def piece(id: str, name: str, sample: int, text: str) -> dict[str, Any]:
    return {"event": "text", "id": id, "checkpoint": name, "sample": sample, "text": text}


def completion(id: str, name: str, sample: int, text: str, **more: Any) -> dict[str, Any]:
    row = {
        "event": "completion", "id": id, "checkpoint": name, "sample": sample, "completion": text,
        "length": len(text.split()), "truncated": False, "rewards": {}, "correct": None, "answer": None, "reason": "",
        "characters": len(text),
    }  # fmt: skip
    return {**row, **more}
