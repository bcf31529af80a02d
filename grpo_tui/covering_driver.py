"""A driver that takes over the terminal from the last screen, without clearing it."""

from __future__ import annotations

from textual.driver import Driver

from grpo_tui import last_screen

ALTERNATE_SCREEN = "\x1b[?1049h"


def covering_driver() -> type[Driver]:
    """The driver's class. It imports what Windows lacks."""
    from textual.drivers.linux_driver import LinuxDriver

    class CoveringDriver(LinuxDriver):
        """Skips entering the alternate screen, which the last screen is on: some terminals would clear it."""

        def write(self, data: str) -> None:
            if data != ALTERNATE_SCREEN or not last_screen.is_shown():
                super().write(data)

        def start_application_mode(self) -> None:
            super().start_application_mode()  # type: ignore[no-untyped-call]
            if modes := last_screen.take_over():
                self.attrs_before = modes

    return CoveringDriver
