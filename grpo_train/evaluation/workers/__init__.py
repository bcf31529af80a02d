"""Evaluating processes: each loads a checkpoint, generates its share of the samples, and judges them."""
