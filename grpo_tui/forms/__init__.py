"""The forms that launch, evaluate and resume."""
