"""The processes that evaluate: one loads a checkpoint, answers its share of the problems and judges."""
