from __future__ import annotations

import pytest

from grpo_tui.box.rows import checkpoint_views


@pytest.mark.parametrize(
    ("row", "figure"),
    [
        ({"status": "partial", "done": "0", "total": "1024"}, "waiting"),
        ({"status": "partial", "done": "512", "total": "1024"}, "50% done"),
        ({"status": "partial", "done": "", "total": ""}, "waiting"),
        ({"status": "failed", "error": "out of memory"}, "failed: out of memory"),
        ({"status": "failed"}, "failed"),
    ],
)
def test_evaluation_without_a_result(row: dict[str, str], figure: str) -> None:
    reply = {
        "checkpoints": [{"step": 10}],
        "evaluations": [{"name": "one_addition", "metrics": [{"step": "10", "accuracy": "", **row}]}],
    }
    assert [result.figure for result in checkpoint_views("one", reply)[0].evaluations] == [figure]
