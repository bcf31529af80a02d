"""The report that is printed when the app ends in an exception."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.traceback import Traceback

from remote.protocol.text import clean


class CrashReport:
    """The traceback of the exception in progress, whose message may hold text from a box.

    Without local variables, which hold what was typed and the environment.
    """

    def __init__(self) -> None:
        self._traceback = Traceback()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._traceback, options):
            yield Segment(clean(text), style, control)
