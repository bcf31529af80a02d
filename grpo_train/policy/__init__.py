"""The policy: loading, adapters, log-probabilities."""
