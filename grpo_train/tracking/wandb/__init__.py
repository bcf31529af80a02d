"""Weights & Biases: a process beside the supervisor feeds it from a run's logs, never the trainer. Torch-free.

The logs are the truth: ``grpo-train track`` sends a run again at any time. A W&B run has the identity of our run as its
ID. W&B cannot rewind, so a resume from an earlier step becomes a W&B run ``ID-r1``, ``ID-r2``, … in the same group.
"""
