"""What the app has said in this session: the line at the bottom shows one message, a list has all. No Textual.

A message that only informs leaves the line by itself. A warning stays until it is read: a key or a click after it was
shown long enough, or the list. Older unread ones come after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grpo_tui.box.asking import monotonic
from grpo_tui.box.formatting import one_line

Severity = Literal["information", "warning", "error"]
SIGNS: dict[Severity, tuple[str, str]] = {
    "information": ("·", "good"),
    "warning": ("▲", "warn"),
    "error": ("✖", "bad"),
}
"""Sign and tone of each severity."""
SHOWN_S = 6.0
"""A message that only informs is on the line this long."""
READ_S = 2.0
"""What is pressed sooner was not an answer to what the line says."""
KEPT = 1000


@dataclass(eq=False)
class StatusMessage:
    """One message."""

    text: str
    title: str = ""
    severity: Severity = "information"
    box: str = ""
    run: str = ""
    at: float = 0.0
    """Seconds since the epoch."""
    answers: bool = False
    """Whether it answers a key: the next one shows that it was read."""
    times: int = 1
    """How often it was said without being read in between."""
    is_read: bool = False
    raised: float = 0.0
    """By the app's clock."""

    def __post_init__(self) -> None:
        self.is_read = self.severity == "information"

    @property
    def sign(self) -> str:
        """The sign of its severity; "" where its title begins with one."""
        first, _, rest = self.title.partition(" ")
        return "" if rest and len(first) == 1 and not first.isalnum() else SIGNS[self.severity][0]

    @property
    def tone(self) -> str:
        return SIGNS[self.severity][1]

    def line(self) -> tuple[str, str]:
        """The message on one line: its sign with the title, and what follows."""
        title, text = one_line(self.title), one_line(self.text)
        if self.times > 1:
            text = f"{text} (×{self.times})"
        return " ".join(filter(None, [self.sign, title])), f" · {text}" if title and text else f" {text}"

    def says(self, word: str) -> bool:
        """Whether a search finds it."""
        return word.lower() in " ".join([self.title, self.text, self.box, self.run, self.severity]).lower()


class Messages:
    """All messages of a session, the newest last."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self.entries: list[StatusMessage] = []
        self._shown: StatusMessage | None = None
        self._since = 0.0
        """When the line began to show it."""

    def add(self, new: StatusMessage) -> None:
        """Add a message; an unread one that says the same gives way to it."""
        new.raised = self._now()
        for old in self.unread:
            if (old.title, old.text, old.severity) == (new.title, new.text, new.severity):
                new.times += old.times
                self.entries.remove(old)
                break
        self.entries = [*self.entries, new][-KEPT:]

    @property
    def unread(self) -> list[StatusMessage]:
        """The warnings that were not read, the newest last."""
        return [one for one in self.entries if not one.is_read]

    def shown(self) -> StatusMessage | None:
        """What the line says now."""
        found = self.entries[-1] if self.entries else None
        if found is not None and found.is_read:
            is_new = found.severity == "information" and self._now() - found.raised < SHOWN_S
            found = found if is_new else next(reversed(self.unread), None)
        if found is not self._shown:
            self._shown, self._since = found, self._now()
        return found

    def used(self) -> None:
        """The user pressed something: a warning that was on the line long enough was read."""
        shown = self._shown
        if shown is not None and (shown.answers or self._now() - self._since >= READ_S):
            shown.is_read = True

    def read_all(self) -> None:
        """The user sees the list."""
        for one in self.unread:
            one.is_read = True
