"""The policy: loading, adapters and log-probabilities."""
