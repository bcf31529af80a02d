"""Stored evaluations: cache keys, unfinished and complete results, the evaluation log."""
