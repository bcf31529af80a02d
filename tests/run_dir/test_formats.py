"""Rows of the previous format under today's names."""

from __future__ import annotations

import pytest

from grpo_train.run_dir.formats import current_row, current_table_row


@pytest.mark.parametrize(
    ("key", "current"),
    [
        ("groups/all_right", "groups/all_correct"),
        ("accuracy/tolerant", "accuracy/flexible"),
        ("tolerant", "flexible"),
        ("tolerant_accuracy", "flexible_accuracy"),
        ("gsm8k_r1_template_eval/tolerant_accuracy", "gsm8k_r1_template_eval/flexible_accuracy"),
        ("gsm8k_r1_template_eval/accuracy", "gsm8k_r1_template_eval/accuracy"),
        ("reward", "reward"),
    ],
)
def test_old_keys_get_their_new_names(key: str, current: str) -> None:
    assert current_row({"step": 1, key: 0.5}) == {"step": 1, current: 0.5}


def test_health_sentences_become_records() -> None:
    row = current_row({"health": ["alarm: the loss is NaN", "no signal", {"code": "low_ess", "level": "warning"}]})
    assert row["health"] == [
        {"code": "", "level": "alarm", "message": "the loss is NaN"},
        {"code": "", "level": "info", "message": "no signal"},
        {"code": "low_ess", "level": "warning"},
    ]


@pytest.mark.parametrize(
    ("status", "n", "columns"),
    [
        ("ok", "12", ("ok", "12", "12", "")),
        ("partial: 3 of 12 samples", "", ("partial", "3", "12", "")),
        ("failed: timed out: 5 s", "", ("failed", "", "", "timed out: 5 s")),
    ],
)
def test_status_text_becomes_columns(status: str, n: str, columns: tuple[str, ...]) -> None:
    row = current_table_row({"step": "10", "status": status, "n": n})
    assert (row["status"], row["done"], row["total"], row["error"]) == columns
    assert current_table_row(row) == row
