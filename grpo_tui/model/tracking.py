"""What a run's events say of its tracking by W&B. No Textual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_tui.model.formatting import one_line

MAX_URL = 500


@dataclass(frozen=True)
class Tracking:
    """How a run is tracked, as far as its events say."""

    run: str
    asked: str = ""
    """``tracking.wandb`` of its config: ``off``, ``offline``, ``online`` or ``auto``; "" = not known."""
    mode: str = ""
    """``online`` or ``offline`` since it was sent; "" = nothing was sent while it ran."""
    url: str = ""
    """Its page in W&B; "" offline."""
    at: str = ""
    """When it was opened last."""
    error: str = ""
    """Why W&B lacks something, unless it was opened again since."""
    failed_at: str = ""
    failed_mode: str = ""
    """``online`` or ``offline`` where it failed."""

    @property
    def state(self) -> str:
        """One word for a line."""
        if self.error:
            return "failed"
        return self.mode or ("off" if self.asked in ("", "off") else "not sent")

    @property
    def command(self) -> str:
        """What sends it, or the rest of it, at any time."""
        mode = " --mode offline" if (self.failed_mode or self.mode or self.asked) == "offline" else ""
        return f"grpo-train track --training-run {self.run}{mode}"


def tracking_of(run: str, events: Iterable[Mapping[str, Any]], asked: Any = None) -> Tracking:
    """From the events of a run, in order, and ``tracking.wandb`` of its config."""
    found: dict[str, str] = {}
    for event in events:
        at = str(event.get("time") or "")[:19].replace("T", " ")
        if event.get("event") == "tracking":
            url = str(event.get("url") or "")[:MAX_URL]
            is_page = url.startswith(("https://", "http://")) and url.isprintable() and " " not in url
            found = {"mode": one_line(str(event.get("mode") or ""))[:20], "url": url if is_page else "", "at": at}
        elif event.get("event") == "tracking_failed":
            found["failed_mode"] = str(event.get("mode") or "")
            found |= {"error": one_line(str(event.get("error") or "unknown"))[:300], "failed_at": at}
    return Tracking(run, str(asked or ""), **found)
