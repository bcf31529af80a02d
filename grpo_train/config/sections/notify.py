"""``notify``: notifications about a run."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from grpo_train.config.sections.base import Section, conflict

_REFERENCE = re.compile(r"\$(?:\{\w+\}|[A-Za-z_]\w*)")


class Notify(Section):
    """Notifications when a run finishes, crashes, stalls or stops by itself, and when a stage fails. docs/workflows.md
    has examples for ntfy and Slack."""

    command: list[str] = Field(default_factory=list)
    """Program with its arguments; it gets the notification as JSON on stdin. Empty: none."""
    url: str = ""
    """Variable with the address that notifications are posted to, such as ``$NOTIFY_URL``, set in ``.env`` or the
    environment. A webhook's address is a secret, so it must not be written here. Empty: none."""
    events: list[Literal["finished", "crashed", "stalled", "stopped_by_itself", "stage_failed"]] = Field(
        default_factory=lambda: ["finished", "crashed", "stalled", "stopped_by_itself", "stage_failed"]  # type: ignore[arg-type]
    )
    """Events that are sent. ``finished`` is the end of the run and its workflow, ``stopped_by_itself`` a stop by
    ``budget`` or ``workflow.stop_when``."""

    @field_validator("url")
    @classmethod
    def _is_reference(cls, url: str) -> str:
        if url and not _REFERENCE.fullmatch(url):
            raise conflict(  # the value is not shown
                "notify.url: expected the name of a variable, such as $NOTIFY_URL, because a webhook's address is a "
                "secret; set the variable in .env on the box (grpo-tui env put)",
                "notify.url",
            )
        return url
