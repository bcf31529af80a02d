"""Forms: launch, evaluate, resume."""
