"""Evaluation: checkpoints in; metrics.csv, completions.jsonl and summary.json out. Never inside a training process."""
