"""The program ``grpo-tui``: the last screen is on the terminal before anything heavy is imported."""

from __future__ import annotations

import sys

from grpo_tui import last_screen


def program() -> None:
    """Show the last screen, then start the app or run a command."""
    last_screen.show(sys.argv[1:])
    from grpo_tui.cli import program as run

    run()


if __name__ == "__main__":
    program()
