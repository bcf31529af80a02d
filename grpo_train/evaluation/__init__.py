"""Evaluation of checkpoints, outside the training process: writes metrics.csv, completions.jsonl, summary.json."""
