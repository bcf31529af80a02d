"""``backup``: backups while a run trains."""

from __future__ import annotations

from grpo_train.config.sections.base import Section


class Backup(Section):
    """Backups of the run by its supervisor, beside the training. ``workflow`` has backups as stages."""

    every_save: bool = False
    """Back up the run and its evaluations after each save, and when it ends, in a process that training does not wait
    for. ``run.keep_last`` then removes only checkpoints that are in the backup. Needs a destination in ``backup.yaml``
    (``config/backup.example.yaml``)."""
    to: str | None = None
    """Destination in ``backup.yaml``. Default: the default destination there."""
