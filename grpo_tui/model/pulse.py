"""How often the views are updated: at once while the user does something, once a second otherwise. No Textual."""

from __future__ import annotations

BEAT_S = 0.25
AWAKE = 4
"""Beats with an update after an input."""
REST = 4
"""Beats from one update to the next while nothing is new, for ages in seconds; and from one with news to the next: rows
that arrive faster are shown together."""


class Pulse:
    """Decides at each beat whether to update the views. News after a rest are shown at the next beat."""

    def __init__(self) -> None:
        self._awake = AWAKE
        self._has_news = False
        self._since_update = self._since_news = 0

    def wake(self) -> None:
        """The user did something."""
        self._awake = AWAKE

    def answered(self) -> None:
        """An answer arrived, which may lead to the next request."""
        self._awake = max(self._awake, 1)

    def news(self) -> None:
        """The box sent something."""
        self._has_news = True

    def beat(self) -> bool:
        """Whether to update the views now."""
        self._since_update += 1
        self._since_news += 1
        is_due = self._since_update >= REST or (self._has_news and self._since_news >= REST)
        if not self._awake and not is_due:
            return False
        if self._has_news:
            self._has_news, self._since_news = False, 0
        self._awake, self._since_update = max(0, self._awake - 1), 0
        return True
