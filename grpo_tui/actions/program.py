"""Actions on the program itself: command palette, help, quit."""

from __future__ import annotations

from grpo_tui.actions.action import Face


def show_palette(face: Face) -> None:
    face.action_command_palette()


def show_help(face: Face) -> None:
    from grpo_tui.screens.help import HelpScreen

    face.push_screen(HelpScreen(face.actions, face.situation()))


def quit_app(face: Face) -> None:
    """Exit, and name the runs that continue on the box."""
    live = face.store.live_runs()
    message = None
    if live:
        runs = ", ".join(f"{row.name} ({row.step}/{row.total_steps or '?'})" for row in live)
        command = "grpo-tui --demo" if face.options.demo else f"grpo-tui --box {face.store.box}"
        verb = "continues" if len(live) == 1 else "continue"
        message = f"{runs} {verb} on box {face.store.box}. To return: {command}"
    face.exit(message=message)
