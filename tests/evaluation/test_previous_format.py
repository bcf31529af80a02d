"""Evaluations that version 0.1.0 (format 1) stored are read under today's names."""

from __future__ import annotations

import json
from pathlib import Path

from grpo_train.evaluation.results.stored import read_completion_rows, read_summary


def test_format_1_results_are_read(tmp_path: Path) -> None:
    row = {"step": 10, "index": 0, "sample": 0, "correct": False, "tolerant": True, "reason": "no_answer_tag"}
    (tmp_path / "completions.jsonl").write_text(json.dumps(row) + "\n")
    metrics = {"step": 10, "name": "step_10", "n": 1, "accuracy": 0.0, "tolerant_accuracy": 1.0, "tolerant_ci_low": 0.2}
    (tmp_path / "summary.json").write_text(json.dumps({"status": "complete", "metrics": metrics}))

    (read,) = read_completion_rows(tmp_path)
    assert read["flexible"] is True
    assert "tolerant" not in read
    summary = read_summary(tmp_path)
    assert summary is not None
    assert summary["metrics"] == {
        "step": 10, "name": "step_10", "n": 1, "accuracy": 0.0, "flexible_accuracy": 1.0, "flexible_ci_low": 0.2,
    }  # fmt: skip
