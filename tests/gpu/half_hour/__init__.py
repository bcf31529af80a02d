"""Half an hour on a GPU: checks, then measurements, each in a call of at most ten minutes. See docs/gpu.md."""
