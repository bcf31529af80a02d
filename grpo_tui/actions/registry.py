"""The actions. Key bindings, key bar, help screen and command palette are made from this tuple. No Textual."""

from __future__ import annotations

from grpo_tui.actions import boxes, forms, program, reasons, runs, view
from grpo_tui.actions.action import Action

ACTIONS: tuple[Action, ...] = (
    Action("launch", "n", "launch", "Runs", forms.launch, reasons.not_writable, opens_form=True),
    Action("stop", "s", "stop", "Runs", runs.stop, reasons.not_stoppable),
    Action("eval", "e", "eval", "Runs", forms.evaluate, reasons.not_evaluable, opens_form=True),
    Action("resume", "r", "resume", "Runs", forms.resume, reasons.not_resumable, opens_form=True),
    Action("attach", "a", "attach", "Runs", runs.attach, reasons.not_attachable),
    Action("kill", "K", "kill", "Runs", runs.kill, reasons.not_killable, dangerous=True),
    Action("boxes", "b", "boxes", "Boxes", boxes.choose_box),
    Action("reconnect", "c", "reconnect", "Boxes", boxes.reconnect, reasons.connected, in_bar=False),
    Action("filter", "slash", "filter", "View", view.show_filter, reasons.no_runs),
    Action("zoom", "enter,z", "zoom", "View", view.zoom, in_bar=False),
    Action("back", "escape", "back", "View", view.back, in_bar=False),
    Action("log_next", "l", "log tab", "View", view.next_log, in_bar=False),
    Action("smooth", "tilde,m", "smooth", "View", view.smooth, in_bar=False),
    Action("palette", "colon,ctrl+p", "command", "Program", program.show_palette),
    Action("help", "question_mark,f1", "help", "Program", program.show_help),
    Action("quit", "q", "quit", "Program", program.quit_app),
)
