"""Runs long after they ended: their records, the query language, and what they cost. Standard library only.

``grpo-train history`` and ``grpo-tui history`` share it. A file of records is a cache: everything in it comes from run
directories and can be read from them again. The curves of a run stay in its directory.
"""
