from __future__ import annotations

from typing import Any

from grpo_tui.dialogs.form import TaskNames


async def test_unknown_task_names_known_ones() -> None:
    async def ask(op: str, **params: Any) -> dict[str, Any]:
        return {"tasks": {f"task_{number:02}": "" for number in range(20)}}

    words = await TaskNames(ask).problem("über")
    assert "known tasks: task_00, task_01" in words
    assert "task_09" not in words
    assert await TaskNames(ask).problem("TASK_07") == "unknown task 'TASK_07' on this box; did you mean task_07?"
