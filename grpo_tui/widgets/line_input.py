"""A field of one line."""

from __future__ import annotations

from textual import events
from textual.widgets import Input


class LineInput(Input):
    """Line breaks of a pasted text become spaces: Textual takes the first line and drops the others."""

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = " ".join(event.text.splitlines())
        if self.selection.is_empty:
            self.insert_text_at_cursor(text)
        else:
            self.replace(text, *self.selection)
