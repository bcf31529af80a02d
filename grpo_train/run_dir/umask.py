"""The umask of everything that writes a root: 077 unless the box is configured for a group.

The agent passes a box's ``umask`` on in ``GRPO_UMASK``, because a tmux server that was there before has its own umask.
Files are created with the mode that the umask allows and existing ones are never changed. Standard library only.
"""

from __future__ import annotations

import os
import re

from grpo_train.run_dir.errors import UserError

UMASK_VARIABLE = "GRPO_UMASK"
PRIVATE = "077"
"""Runs are readable by their owner only."""


def set_umask(text: str | None = None) -> str:
    """Set this process's umask to ``text``, else to ``GRPO_UMASK``, else to 077; returns it as three octal digits.

    Raises UserError for anything but three octal digits.
    """
    value = text or os.environ.get(UMASK_VARIABLE) or PRIVATE
    if not re.fullmatch(r"0?[0-7]{3}", value):
        raise UserError(f"invalid umask {value!r}; use three octal digits such as 077 or 007", code="bad_config")
    os.umask(int(value, 8))
    return value[-3:]
