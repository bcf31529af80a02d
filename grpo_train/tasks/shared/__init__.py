"""Base classes of tasks, and parts that several tasks share."""
