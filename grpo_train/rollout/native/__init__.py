"""Our own rollouts: a frozen copy of the weights, key and value slots that are allocated once, no reordering."""
