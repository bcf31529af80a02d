"""The version of grpo-tui (pyproject.toml reads it here), and of the files and messages it writes."""

VERSION = "0.2.0"
FORMAT = 2
"""Of log rows, health and error codes. Programs of this version also read format 1 (version 0.1.0, which writes none):
see :mod:`grpo_train.run_dir.formats`."""
