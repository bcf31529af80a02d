"""The actions. Key bindings, key bar, help screen and command palette are made from this tuple. No Textual."""

from __future__ import annotations

from grpo_tui.actions import boxes, forms, program, reasons, runs, view
from grpo_tui.actions.action import Action

ACTIONS: tuple[Action, ...] = (
    Action(
        "launch", "n", "launch", "Launch a run: choose a config, check the exact command, start it",
        "Runs", forms.launch, reasons.not_writable,
    ),
    Action(
        "stop", "s", "stop", "Stop the run after the current step and save a checkpoint",
        "Runs", runs.stop, reasons.not_stoppable,
    ),
    Action(
        "eval", "e", "eval", "Evaluate checkpoints of the run on held-out problems",
        "Runs", forms.evaluate, reasons.not_evaluable,
    ),
    Action(
        "resume", "r", "resume", "Resume the run from one of its checkpoints",
        "Runs", forms.resume, reasons.not_resumable,
    ),
    Action(
        "attach", "a", "attach", "Attach to the tmux session of the run; detach to return here",
        "Runs", runs.attach, reasons.not_attachable,
    ),
    Action(
        "kill", "k", "kill", "Kill the run now without saving (asks for confirmation)",
        "Runs", runs.kill, reasons.not_killable, dangerous=True,
    ),
    Action("boxes", "b", "boxes", "Switch to another box, or add one", "Boxes", boxes.choose_box),
    Action(
        "reconnect", "c", "reconnect", "Reconnect to the box now",
        "Boxes", boxes.reconnect, reasons.connected, in_bar=False,
    ),
    Action(
        "filter", "slash", "filter", "Filter the list of runs by name and state",
        "View", view.show_filter, reasons.no_runs,
    ),
    Action("zoom", "enter,z", "zoom", "Zoom the focused panel", "View", view.zoom, in_bar=False),
    Action("back", "escape", "back", "Close the zoomed panel or clear the filter", "View", view.back, in_bar=False),
    Action("log_next", "l", "log tab", "Show the next log tab", "View", view.next_log, in_bar=False),
    Action("smooth", "tilde,m", "smooth", "Turn smoothing of the curves on or off", "View", view.smooth, in_bar=False),
    Action("palette", "colon,ctrl+p", "command", "Search all commands", "Program", program.show_palette),
    Action("help", "question_mark,f1", "help", "Show all keys", "Program", program.show_help),
    Action("quit", "q", "quit", "Quit; runs on the box continue", "Program", program.quit_app),
)  # fmt: skip
