"""Runs a list of stages, each a process tree of its own, and keeps ``status.json`` true. Torch-free."""
