"""The sections of a training config, one file per subject. Torch-free."""
