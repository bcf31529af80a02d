"""Keys that are pressed while what they are meant for is being opened."""

from __future__ import annotations

from textual import events
from textual.app import App


class HeldKeys:
    """Keeps keys, and passes them on one after the other: a key may open what the next one is meant for."""

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._held: list[events.Key] | None = None
        self._passed_on: events.Key | None = None
        self._turn: object = None
        """The release that is at work; another one, or a hold, ends it."""

    def hold(self) -> None:
        """Keep the keys from now on, behind those that are kept already."""
        self._held, self._turn = self._held or [], None

    def holds(self, event: events.Event) -> bool:
        """Whether an event is a key that is kept."""
        if self._held is None or not isinstance(event, events.Key) or event.key in ("ctrl+c", "ctrl+q"):
            return False
        if event is self._passed_on:
            return False
        self._held.append(event)
        return True

    def pass_on(self, keys: list[events.Key]) -> None:
        """Pass on keys that a dialog had no use for, behind those that are kept."""
        self._held = [*(self._held or []), *keys]
        self.release()

    def release(self) -> None:
        """Pass on the keys that are kept, each once the one before has had its effect."""
        self._turn = turn = object()
        self._release_next(turn)

    def _release_next(self, turn: object) -> None:
        if turn is not self._turn:
            return
        if not self._held:
            self._held = None
            return
        held = self._held.pop(0)
        self._passed_on = events.Key(held.key, held.character)
        self._app.post_message(self._passed_on)
        self._app.call_after_refresh(self._release_next, turn)
