"""The workflow of the selected run, in its summary."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_tui.box.rows import RunRow, workflow_parts
from tests.tui.conftest import Start
from tests.tui.fake import DEFAULT_ANSWERS, FakeClient, learning_box

STAGES = [
    "train to step 50", "evaluate step 50", "back up at step 50", "train to step 100", "evaluate step 100",
    "back up at step 100",
]  # fmt: skip


def line(done: object, state: str = "running", failed: object = (), stages: object = STAGES, reason: str = "") -> str:
    row = RunRow("demo", state, reason=reason)
    parts = workflow_parts({"stages": stages, "done": done, "failed": list(failed) if failed else []}, row)  # type: ignore[call-overload]
    return " · ".join(part.text for part in parts)


def test_done_under_way_and_to_come() -> None:
    assert line(0).startswith("0 of 6 done · ▸ train to step 50 · then evaluate step 50, back up at step 50, train to")
    assert line(0).endswith(" …")
    assert line(5) == "5 of 6 done · ▸ back up at step 100"
    assert line(6, "finished") == "6 of 6 done"
    assert line(4, failed=STAGES[1:3]) == (
        "4 of 6 done · ✖ back up at step 50 and 1 more · ▸ evaluate step 100 · then back up at step 100"
    )


def test_what_stopped_it() -> None:
    assert line(5, "stopped", reason="plateau: reward") == (
        "5 of 6 done · stopped: plateau: reward · then back up at step 100"
    )
    assert line(5, "crashed") == "5 of 6 done · crashed · then back up at step 100"


@pytest.mark.parametrize(
    ("done", "stages"),
    [(0, ["train to step 9"]), (1, ["train to step 9", "evaluate step 9"]), (7, STAGES), (-1, STAGES), ("1", STAGES),
     (1, "x"), (1, [3, None])],
)  # fmt: skip
def test_no_line_without_a_workflow(done: object, stages: object) -> None:
    assert line(done, stages=stages) == ""


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_summary_has_the_line_where_there_is_room(start: Start, size: tuple[int, int]) -> None:
    def script(client: FakeClient) -> None:
        def show(client: FakeClient, params: Any) -> dict[str, Any]:
            workflow = {"stages": STAGES, "done": 3, "failed": []}
            return {**DEFAULT_ANSWERS["show_run"](client, params), "workflow": workflow}

        learning_box(client).answers["show_run"] = show

    async with start(script=script, size=size, wait="87/200") as session:
        if size[0] > 80:
            await session.until_text("3 of 6 done · ▸ train to step 100")
        else:
            assert "workflow" not in session.text()
