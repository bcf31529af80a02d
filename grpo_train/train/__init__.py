"""The training engine: :mod:`grpo_train.train.loop` is the page to read first."""
