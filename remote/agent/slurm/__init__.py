"""Boxes with ``scheduler: slurm``: the login node of a cluster. A run is a job in place of a tmux session.

The agent writes ``slurm.sh`` into the run directory and submits it (:mod:`jobs`, :mod:`script`); SLURM's queue and
accounting complete the states of the run directories (:mod:`states`). Everything else reads the run directories on the
shared file system, as on any box.
"""
