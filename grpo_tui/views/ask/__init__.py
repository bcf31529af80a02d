"""Ask: questions to checkpoints of a run, and answers as they are drawn."""
