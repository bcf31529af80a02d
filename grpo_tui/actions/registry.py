"""The actions. Key bindings, key bar, help screen and command palette are made from this tuple. No Textual."""

from __future__ import annotations

from grpo_tui.actions import boxes, charts, forms, program, reasons, runs, view
from grpo_tui.actions.action import Action

ACTIONS: tuple[Action, ...] = (
    Action("launch", "n", "launch", "Runs", forms.launch, reasons.not_writable, opens_form=True, scope="home"),
    Action("stop", "s", "stop", "Runs", runs.stop, reasons.not_stoppable),
    Action("eval", "e", "eval", "Runs", forms.evaluate, reasons.not_evaluable, opens_form=True),
    Action("resume", "r", "resume", "Runs", forms.resume, reasons.not_resumable, opens_form=True),
    Action("attach", "a", "attach", "Runs", runs.attach, reasons.not_attachable),
    Action("kill", "K", "kill", "Runs", runs.kill, reasons.not_killable, dangerous=True),
    Action("boxes", "b", "boxes", "Boxes", boxes.choose_box),
    Action("reconnect", "c", "reconnect", "Boxes", boxes.reconnect, reasons.connected, in_bar=False),
    Action("home", "1", "home", "Views", view.show_home),
    Action("charts", "2", "charts", "Views", view.show_charts),
    Action("mark", "space", "mark", "Home", runs.mark, reasons.no_run, scope="home"),
    Action("unmark_all", "u", "unmark all", "Home", runs.unmark_all, reasons.no_marks, in_bar=False, scope="home"),
    Action("filter", "slash", "filter", "Home", view.show_filter, reasons.no_runs, scope="home"),
    Action("zoom", "enter,z", "zoom", "Home", view.zoom, in_bar=False, scope="home"),
    Action("back", "escape", "back", "Views", view.back, in_bar=False),
    Action("log_next", "l", "log tab", "Home", view.next_log, in_bar=False, scope="home"),
    Action("smooth", "tilde,m", "smooth", "Home", view.smooth, in_bar=False, scope="home"),
    Action("crosshair_left", "left", "crosshair", "Charts", charts.left, scope="charts"),
    Action("crosshair_right", "right", "crosshair", "Charts", charts.right, in_bar=False, scope="charts"),
    Action("crosshair_far_left", "shift+left", "crosshair", "Charts", charts.far_left, in_bar=False, scope="charts"),
    Action("crosshair_far_right", "shift+right", "crosshair", "Charts", charts.far_right, in_bar=False, scope="charts"),
    Action("zoom_in", "plus", "zoom in", "Charts", charts.zoom_in, scope="charts"),
    Action("zoom_out", "minus", "zoom out", "Charts", charts.zoom_out, scope="charts"),
    Action("pan_left", "left_square_bracket", "pan", "Charts", charts.pan_left, scope="charts"),
    Action("pan_right", "right_square_bracket", "pan", "Charts", charts.pan_right, in_bar=False, scope="charts"),
    Action("show_all", "0", "all", "Charts", charts.show_all, scope="charts"),
    Action("follow", "f", "follow", "Charts", charts.follow, scope="charts"),
    Action("smooth_less", "comma", "smooth", "Charts", charts.smooth_less, scope="charts"),
    Action("smooth_more", "full_stop", "smooth", "Charts", charts.smooth_more, in_bar=False, scope="charts"),
    Action("log_axis", "equals_sign", "log", "Charts", charts.toggle_log, scope="charts"),
    Action("x_axis", "x", "x axis", "Charts", charts.next_axis, scope="charts"),
    Action("toggle_metric", "space", "show", "Charts", charts.toggle_metric, scope="charts"),
    Action("metric_earlier", "less_than_sign", "earlier", "Charts", charts.earlier, in_bar=False, scope="charts"),
    Action("metric_later", "greater_than_sign", "later", "Charts", charts.later, in_bar=False, scope="charts"),
    Action("full_screen", "z", "full screen", "Charts", charts.zoom, scope="charts"),
    Action("filter_metrics", "slash", "filter", "Charts", charts.show_filter, scope="charts"),
    Action("palette", "colon,ctrl+p", "command", "Program", program.show_palette),
    Action("help", "question_mark,f1", "help", "Program", program.show_help),
    Action("quit", "q", "quit", "Program", program.quit_app),
)
