"""``grpo-train bench``: the speed of rollouts, training and saves on this machine, beside what its hardware allows."""
