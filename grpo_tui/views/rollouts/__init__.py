"""Rollouts: from the steps of a run to prompt groups, samples, and one or two samples in whole."""
