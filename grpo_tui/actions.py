"""Everything the user can do: the table of actions, why one is not available now, and the user's keys. No Textual.

Key bindings, key bar, help screen and command palette are made from ``ACTIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from grpo_train.run_dir.errors import UserError, did_you_mean
from grpo_tui.box.rows import RunRow
from grpo_tui.box.store import Store
from grpo_tui.files import read_user_file, user_file

GROUPS = ("Runs", "Views", "Home", "Charts", "Rollouts", "Logs", "Box", "Compare", "History", "Boxes", "Program")


@dataclass(frozen=True)
class Situation:
    """The state that decides which actions are available."""

    store: Store
    readonly: bool = False
    view: str = ""
    no_history: str = ""
    """Why there is no history; "" if there is one."""

    @property
    def marked(self) -> list[RunRow]:
        """The runs that an action is for instead of the selected one: where the list is shown, the marked ones."""
        marks = self.store.marks
        return [row for row in self.store.runs or () if row.name in marks] if marks and self.view == "home" else []

    @property
    def run(self) -> RunRow | None:
        return self.store.run


Reason = Callable[[Situation], str]
"""Why an action is not available now; "" if it is."""


@dataclass(frozen=True)
class Action:
    """One thing the user can do."""

    id: str
    key: str
    label: str
    """One or two words for the key bar."""
    group: str
    do: str
    """What it runs: ``NAME(ARGUMENTS)`` is ``action_NAME`` of the view, else of the app; ``FILE.NAME`` is a function of
    ``commands/FILE.py``. A coroutine runs in a worker, so it may wait for dialogs and replies."""
    reason: Reason = lambda situation: ""
    dangerous: bool = False
    in_bar: bool = True
    opens_form: bool = False
    """Whether keys that are pressed until its form is open belong to the form."""
    scope: str = ""
    """The view in which it exists; "" = every view …"""
    not_in: str = ""
    """… but this one, where its key does something like it."""
    help: str = ""
    """A sentence for the help screen and the palette; "" = the first line of the docstring of what it runs. Given where
    one function serves several actions."""

    def is_in(self, view: str) -> bool:
        """Whether it exists in a view."""
        if view == "history" and self.group == "Runs":
            return False  # these act on the selected run of the box; the history has those of all boxes
        return self.scope in ("", view) and view != self.not_in

    def shares_a_view(self, other: Action) -> bool:
        """Whether both exist in some view."""
        if self.scope and other.scope:
            return self.scope == other.scope
        view = self.scope or other.scope
        return not view or (self.is_in(view) and other.is_in(view))

    @property
    def opens_line(self) -> bool:
        """Whether it opens a line that is typed into."""
        return self.do.startswith(("show_filter", "ask_for"))

    @property
    def takes_text(self) -> bool:
        """Whether what it opens is typed into at once: such a line, or a dialog with one."""
        return self.opens_line or self.id in ("note", "send_line")

    @property
    def keys(self) -> list[str]:
        """Its keys; the key bar shows the first."""
        return [key.strip() for key in self.key.split(",")]


_KEY_LABELS = {
    "question_mark": "?", "colon": ":", "slash": "/", "escape": "esc", "tilde": "~",
    "left_square_bracket": "[", "right_square_bracket": "]", "ctrl+p": "^p", "plus": "+", "minus": "−", "comma": ",",
    "full_stop": ".", "equals_sign": "=", "less_than_sign": "<", "greater_than_sign": ">", "left": "←", "right": "→",
    "up": "↑", "down": "↓", "pageup": "pgup", "pagedown": "pgdn",
    "vertical_line": "|", "shift+left": "⇧←", "shift+right": "⇧→", "number_sign": "#", "ctrl+f": "^f", "ctrl+z": "^z",
}  # fmt: skip


def key_label(key: str) -> str:
    """Text of a key for the screen."""
    return _KEY_LABELS.get(key, key)


# why an action is not available now; "" if it is

READONLY = "started with --readonly: the box is not changed"
DISCONNECTED = "not connected to the box; runs continue"
NO_RUN = "no run selected"
OLDER = "runs of the older layout can only be evaluated"


def disconnected(situation: Situation) -> str:
    return "" if situation.store.connected else DISCONNECTED


def not_writable(situation: Situation) -> str:
    return readonly(situation) or disconnected(situation)


def _not_writable_run(situation: Situation) -> str:
    return not_writable(situation) or ("" if situation.run else NO_RUN)


def why_not_stoppable(store: Store, run: RunRow) -> str:
    if not run.is_live:
        return f"{run.name} is not running ({run.state})"
    return "stop already requested; a kill does not wait for the step" if run.stop_requested else ""


def why_not_killable(store: Store, run: RunRow) -> str:
    return "" if run.is_live else f"{run.name} is not running ({run.state})"


def not_stoppable(situation: Situation) -> str:
    if situation.marked:
        return not_writable(situation)  # the dialog says which of them
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    return why_not_stoppable(situation.store, run)


def not_killable(situation: Situation) -> str:
    if situation.marked:
        return not_writable(situation)
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    return "" if situation.store.evaluation_sessions(run.name) else why_not_killable(situation.store, run)


def not_notable(situation: Situation) -> str:
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    return "" if run.layout == "run" else OLDER


def not_evaluable(situation: Situation) -> str:
    return not_writable(situation) if situation.marked else _not_evaluable_run(situation)


def _not_evaluable_run(situation: Situation) -> str:
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    known_empty = situation.store.shown_at is not None and not situation.store.complete_steps()
    return f"{run.name} has no complete checkpoint" if known_empty else ""


def not_resumable(situation: Situation) -> str:
    if (reason := _not_evaluable_run(situation)) or (run := situation.run) is None:
        return reason
    if run.layout != "run":
        return OLDER
    return f"{run.name} is {run.state}; stop it first" if run.is_live else ""


def not_askable(situation: Situation) -> str:
    if (reason := _not_evaluable_run(situation)) or (run := situation.run) is None:
        return reason
    return OLDER if run.layout != "run" else situation.store.engine.mismatch()


def not_backupable(situation: Situation) -> str:
    if (reason := not_notable(situation)) or (run := situation.run) is None:
        return reason
    if run.is_unreadable:
        return f"{run.name} cannot be read"
    work = situation.store.backup_work(run)
    return f"{run.name} is {work}" if work else ""


def not_copyable(situation: Situation) -> str:
    if (run := situation.run) is None:
        return NO_RUN
    return "" if run.layout == "run" else OLDER


def readonly(situation: Situation) -> str:
    return READONLY if situation.readonly else ""


def not_verifiable(situation: Situation) -> str:
    if (reason := not_backupable(situation)) or (run := situation.run) is None:
        return reason
    return "" if run.backup else f"{run.name} has no backup"


def not_cleanable(situation: Situation) -> str:
    if (reason := not_verifiable(situation)) or (run := situation.run) is None:
        return reason
    if run.is_live:
        return f"{run.name} is {run.state}; stop it first"
    assert run.backup is not None
    return f"the backup of {run.name} is on the same disk: no second copy" if run.backup.same_disk else ""


def not_attachable(situation: Situation) -> str:
    run = situation.run
    if run is None:
        return NO_RUN
    if not situation.store.connected:
        return DISCONNECTED
    if run.job is not None:
        return f"{run.name} is pending: its job has no node yet" if run.state == "pending" else ""
    if situation.store.sessions_of(run.name):
        return ""
    if run.is_live:
        return f"{run.name} has no tmux session: it was started from a shell on the box"
    return f"the tmux session of {run.name} is closed"


def not_checkable(situation: Situation) -> str:
    if situation.readonly:
        return "started with --readonly: the check writes a marker to the store"
    return disconnected(situation)


def no_runs(situation: Situation) -> str:
    return "" if situation.store.runs else "no runs to filter"


def no_run(situation: Situation) -> str:
    return "" if situation.run else NO_RUN


def no_marks(situation: Situation) -> str:
    return "" if situation.store.marks else "no run is marked"


def no_list(situation: Situation) -> str:
    return "" if situation.store.runs else "the box has no runs yet"


def connected(situation: Situation) -> str:
    return "already connected" if situation.store.connected and not situation.store.failed_check() else ""


def no_history(situation: Situation) -> str:
    return situation.no_history


def no_tracked_run(situation: Situation) -> str:
    return no_history(situation) if situation.view == "history" else no_run(situation)


# fmt: off
ACTIONS: tuple[Action, ...] = (
    Action("launch", "n", "launch", "Runs", "start.launch", not_writable, opens_form=True, scope="home"),
    Action("stop", "s", "stop", "Runs", "runs.stop", not_stoppable),
    Action("eval", "e", "eval", "Runs", "start.evaluate", not_evaluable, opens_form=True),
    Action("resume", "r", "resume", "Runs", "start.resume", not_resumable, opens_form=True),
    Action("ask", "Q", "ask", "Runs", "start.ask", not_askable, in_bar=False, opens_form=True),
    Action("attach", "a", "attach", "Runs", "runs.attach", not_attachable, not_in="box"),
    Action("backup", "B", "back up", "Runs", "backups.back_up", not_backupable, in_bar=False),
    Action("backup_to", "P", "back up to", "Runs", "backups.choose", not_backupable, in_bar=False, opens_form=True),
    Action("verify", "V", "verify", "Runs", "backups.verify", not_verifiable, in_bar=False),
    Action("restore", "R", "restore", "Runs", "backups.restore", not_writable, in_bar=False, opens_form=True),
    Action("archive", "A", "archive", "Runs", "backups.archive", not_backupable, in_bar=False, opens_form=True),
    Action("cleanup", "C", "clean up", "Runs", "backups.clean_up", not_cleanable, dangerous=True, in_bar=False),
    Action("get", "D", "copy here", "Runs", "copies.get", not_copyable, in_bar=False, opens_form=True),
    Action("tensorboard", "Y", "TensorBoard", "Runs", "boxes.tensorboard", not_notable, in_bar=False),
    Action("kill", "K", "kill", "Runs", "runs.kill", not_killable, dangerous=True),
    Action("boxes", "b", "boxes", "Boxes", "boxes.choose_box"),
    Action("put", "U", "copy to box", "Boxes", "copies.put", readonly, in_bar=False, opens_form=True),
    Action("reconnect", "c", "reconnect", "Boxes", "boxes.reconnect", connected, in_bar=False),
    Action("terminable", "T", "terminate?", "Boxes", "boxes.safe_to_terminate", not_checkable, in_bar=False),
    Action("home", "1", "home", "Views", "show_view('home')",
           help="Show the runs of the box"),
    Action("charts", "2", "charts", "Views", "show_view('charts')",
           help="Show the run's metrics as charts"),
    Action("rollouts", "3", "rollouts", "Views", "show_view('rollouts')",
           help="Show the run's completions"),
    Action("logs", "4", "logs", "Views", "show_view('logs')",
           help="Show the run's log files, of any size"),
    Action("box", "5", "box", "Views", "show_view('box')",
           help="Show the machine: GPUs over time, disks, sessions, checks"),
    Action("compare", "6", "compare", "Views", "show_view('compare')",
           help="Compare the marked runs"),
    Action("history", "7", "history", "Views", "show_view('history')",
           help="Show the runs of all boxes, also of boxes that are gone, and what they cost"),
    Action("mark", "space", "mark", "Home", "runs.mark", no_run, scope="home"),
    Action("mark_all", "M", "mark all", "Home", "runs.mark_all", no_run, in_bar=False, scope="home"),
    Action("unmark_all", "u", "unmark all", "Home", "runs.unmark_all", no_marks, in_bar=False, scope="home"),
    Action("filter", "slash", "filter", "Home", "show_filter", no_runs, scope="home",
           help="Filter the list of runs by words, state, any metric or config key"),
    Action("sort", "o", "sort", "Home", "sort", no_list, scope="home"),
    Action("columns", "O", "columns", "Home", "choose_columns", no_list, in_bar=False, scope="home"),
    Action("full_names", "w", "full names", "Home", "toggle_full_names", no_list, in_bar=False, scope="home"),
    Action("note", "t", "note", "Home", "runs.note", not_notable, in_bar=False, scope="home", opens_form=True),
    Action("dismiss", "d", "dismiss", "Home", "dismiss_need", in_bar=False, scope="home"),
    Action("bring_back", "I", "bring back", "Home", "bring_back_needs", in_bar=False, scope="home"),
    Action("copy_path", "y", "copy path", "Home", "copy_path", no_run, in_bar=False, scope="home"),
    Action("export_runs", "E", "export", "Home", "export", no_list, in_bar=False, scope="home"),
    Action("open", "enter", "open", "Home", "open_focused", scope="home"),
    Action("zoom", "z", "zoom", "Home", "zoom", in_bar=False, scope="home",
           help="Zoom the focused panel"),
    Action("back", "escape", "back", "Views", "step_back", in_bar=False),
    Action("log_next", "l", "log tab", "Home", "show_next_log", in_bar=False, scope="home"),
    Action("smooth", "tilde,m", "smooth", "Home", "smooth", in_bar=False, scope="home"),
    Action("crosshair_left", "left", "crosshair", "Charts", "move_crosshair(-1)", scope="charts",
           help="Move the crosshair left"),
    Action("crosshair_right", "right", "crosshair", "Charts", "move_crosshair(1)", in_bar=False, scope="charts",
           help="Move the crosshair right"),
    Action("crosshair_to_highest", "M", "max", "Charts", "go_to_extreme(True)", scope="charts",
           help="Put the crosshair on the highest value that a chart shows"),
    Action("crosshair_to_lowest", "m", "min", "Charts", "go_to_extreme(False)", in_bar=False, scope="charts",
           help="Put the crosshair on the lowest value that a chart shows"),
    Action("next_drop", "d", "drop", "Charts", "go_to_change(False)", scope="charts",
           help="Put the crosshair on the metric's largest drop; again, on the next one"),
    Action("next_rise", "u", "rise", "Charts", "go_to_change(True)", in_bar=False, scope="charts",
           help="Put the crosshair on the metric's largest rise; again, on the next one"),
    Action("open_rollouts", "enter", "rollouts", "Charts", "open_at_crosshair", scope="charts"),
    Action("export_charts", "E", "export", "Charts", "export", no_run, scope="charts"),
    Action("copy_step", "y", "copy", "Charts", "copy", no_run, scope="charts"),
    Action("open_row", "o", "row", "Charts", "open_row", in_bar=False, scope="charts"),
    Action("below_charts", "i", "config", "Charts", "turn_tab", scope="charts"),
    Action("crosshair_step_left", "shift+left", "step", "Charts", "step_crosshair(-1)", in_bar=False, scope="charts",
           help="Move the crosshair to the logged step before"),
    Action("crosshair_step_right", "shift+right", "step", "Charts", "step_crosshair(1)", in_bar=False, scope="charts",
           help="Move the crosshair to the next logged step"),
    Action("crosshair_far_left", "H,ctrl+left", "far", "Charts", "move_crosshair(-10)", in_bar=False, scope="charts",
           help="Move the crosshair left by ten columns"),
    Action("crosshair_far_right", "L,ctrl+right", "far", "Charts", "move_crosshair(10)", in_bar=False, scope="charts",
           help="Move the crosshair right by ten columns"),
    Action("crosshair_to_step", "number_sign", "step", "Charts", "ask_for_step", in_bar=False, scope="charts",
           help="Put the crosshair on a step by its number"),
    Action("zoom_in", "plus", "zoom in", "Charts", "zoom_range(0.5)", scope="charts",
           help="Show half of the range, centered on the crosshair"),
    Action("zoom_out", "minus", "zoom out", "Charts", "zoom_range(2.0)", scope="charts",
           help="Show twice the range"),
    Action("pan_left", "left_square_bracket", "pan", "Charts", "pan(-1)", scope="charts",
           help="Move the range to earlier steps"),
    Action("pan_right", "right_square_bracket", "pan", "Charts", "pan(1)", in_bar=False, scope="charts",
           help="Move the range to later steps"),
    Action("show_all", "0", "all", "Charts", "show_all", scope="charts"),
    Action("follow", "f", "follow", "Charts", "follow", scope="charts"),
    Action("smooth_less", "comma", "smooth", "Charts", "smooth(-1)", scope="charts",
           help="Smooth the curves less: strong, light, raw"),
    Action("smooth_more", "full_stop", "smooth", "Charts", "smooth(1)", in_bar=False, scope="charts",
           help="Smooth the curves more: raw, light, strong"),
    Action("log_axis", "equals_sign", "log", "Charts", "toggle_log", scope="charts"),
    Action("clip_axis", "vertical_line", "clip", "Charts", "toggle_clip", scope="charts"),
    Action("x_axis", "x", "x axis", "Charts", "next_axis", scope="charts"),
    Action("toggle_metric", "space", "show", "Charts", "toggle_metric", scope="charts"),
    Action("metric_earlier", "less_than_sign", "earlier", "Charts", "move_metric(-1)", in_bar=False, scope="charts",
           help="Move the metric under the cursor to an earlier chart"),
    Action("metric_later", "greater_than_sign", "later", "Charts", "move_metric(1)", in_bar=False, scope="charts",
           help="Move the metric under the cursor to a later chart"),
    Action("more_charts", "pagedown", "more", "Charts", "turn_page(1)", scope="charts",
           help="Show the charts of further metrics"),
    Action("fewer_charts", "pageup", "back", "Charts", "turn_page(-1)", in_bar=False, scope="charts",
           help="Show the charts of the metrics before"),
    Action("chart_columns", "w", "columns", "Charts", "turn_columns", in_bar=False, scope="charts"),
    Action("chart_rows", "v", "rows", "Charts", "turn_rows", in_bar=False, scope="charts"),
    Action("full_screen", "z", "full screen", "Charts", "zoom", scope="charts"),
    Action("filter_metrics", "slash", "filter", "Charts", "show_filter", scope="charts",
           help="Filter the list of metrics by name"),
    Action("next_event", "n", "event", "Charts", "choose_event(1)", scope="charts",
           help="Put the crosshair on the next event: stop, resume, changed config, crash, evaluation"),
    Action("previous_event", "N", "event", "Charts", "choose_event(-1)", in_bar=False, scope="charts",
           help="Put the crosshair on the previous event"),
    Action("pane_in", "enter,l", "in", "Rollouts", "move_pane(1)", scope="rollouts",
           help="Go to the next pane: steps, groups, samples, text"),
    Action("pane_out", "h", "out", "Rollouts", "move_pane(-1)", in_bar=False, scope="rollouts",
           help="Go to the pane on the left"),
    Action("filter_samples", "slash", "filter", "Rollouts", "show_filter", scope="rollouts",
           help='Filter the samples: reward<1 truncated text~"wait"'),
    Action("next_evaluation", "v", "evals", "Rollouts", "next_evaluation", scope="rollouts"),
    Action("next_flips", "F", "lost/gained", "Rollouts", "next_flips", scope="rollouts"),
    Action("export_samples", "E", "export", "Rollouts", "export", no_run, scope="rollouts"),
    Action("order", "o", "order", "Rollouts", "next_order", scope="rollouts"),
    Action("reverse_order", "O", "reverse", "Rollouts", "reverse_order", in_bar=False, scope="rollouts"),
    Action("search_file", "ctrl+f", "whole file", "Rollouts", "search_file", scope="rollouts"),
    Action("next_sample", "n", "next", "Rollouts", "next_match(1)", scope="rollouts",
           help="Go to the next sample that matches the filter"),
    Action("previous_sample", "N", "previous", "Rollouts", "next_match(-1)", in_bar=False, scope="rollouts",
           help="Go to the previous sample that matches the filter"),
    Action("go_to_step", "number_sign", "step", "Rollouts", "ask_for_step", scope="rollouts"),
    Action("mark_sample", "space", "mark", "Rollouts", "toggle_mark", scope="rollouts"),
    Action("side_by_side", "d", "side by side", "Rollouts", "toggle_beside", scope="rollouts"),
    Action("color_tokens", "t", "tokens", "Rollouts", "next_tokens", scope="rollouts"),
    Action("wrap_sample", "w", "wrap", "Rollouts", "toggle_wrap", scope="rollouts"),
    Action("copy_sample", "y", "copy", "Rollouts", "copy", scope="rollouts"),
    Action("whole_prompt", "p", "prompt", "Rollouts", "toggle_prompt", scope="rollouts"),
    Action("follow_steps", "f", "follow", "Rollouts", "follow", scope="rollouts"),
    Action("zoom_pane", "z", "full screen", "Rollouts", "zoom", scope="rollouts",
           help="Show the focused pane in full screen"),
    Action("compare_left", "left", "crosshair", "Compare", "move_crosshair(-1)", scope="compare",
           help="Move the crosshair left"),
    Action("compare_right", "right", "crosshair", "Compare", "move_crosshair(1)", in_bar=False, scope="compare",
           help="Move the crosshair right"),
    Action("compare_problems", "F", "problems", "Compare", "open_flips", scope="compare"),
    Action("export_comparison", "E", "export", "Compare", "export", scope="compare"),
    Action("compare_step_left", "shift+left", "step", "Compare", "step_crosshair(-1)", in_bar=False, scope="compare",
           help="Move the crosshair to the step before"),
    Action("compare_step_right", "shift+right", "step", "Compare", "step_crosshair(1)", in_bar=False, scope="compare",
           help="Move the crosshair to the next step"),
    Action("compare_far_left", "H,ctrl+left", "far", "Compare", "move_crosshair(-10)", in_bar=False, scope="compare",
           help="Move the crosshair left by ten columns"),
    Action("compare_far_right", "L,ctrl+right", "far", "Compare", "move_crosshair(10)", in_bar=False, scope="compare",
           help="Move the crosshair right by ten columns"),
    Action("compare_to_step", "number_sign", "step", "Compare", "ask_for_step", in_bar=False, scope="compare",
           help="Put the crosshair on a step by its number"),
    Action("next_run", "down", "run", "Compare", "highlight(1)", scope="compare",
           help="Highlight the next run"),
    Action("previous_run", "up", "run", "Compare", "highlight(-1)", in_bar=False, scope="compare",
           help="Highlight the previous run"),
    Action("pin", "p", "pin", "Compare", "pin", scope="compare"),
    Action("drop", "d", "drop run", "Compare", "drop", scope="compare"),
    Action("compare_axis", "x", "x axis", "Compare", "next_axis", scope="compare",
           help="Switch to the next x axis: steps, tokens, time since the start of each run, cost"),
    Action("compare_smooth_less", "comma", "smooth", "Compare", "smooth(-1)", scope="compare",
           help="Smooth the curves less: strong, light, raw"),
    Action("compare_smooth_more", "full_stop", "smooth", "Compare", "smooth(1)", in_bar=False, scope="compare",
           help="Smooth the curves more: raw, light, strong"),
    Action("compare_log", "equals_sign", "log", "Compare", "toggle_log", scope="compare"),
    Action("all_keys", "u", "all keys", "Compare", "toggle_all_keys", scope="compare"),
    Action("compare_full_screen", "z", "full screen", "Compare", "zoom", scope="compare",
           help="Show a chart or a table in full screen"),
    Action("previous_metrics", "left_square_bracket", "metrics", "Compare", "turn_metrics(-1)", scope="compare",
           help="Show the previous metrics"),
    Action("next_metrics", "right_square_bracket", "metrics", "Compare", "turn_metrics(1)", in_bar=False,
           scope="compare", help="Show the next metrics, in the order of the charts view"),
    Action("only_charts", "v", "only charts", "Compare", "toggle_tables", scope="compare"),
    Action("next_table", "t", "table", "Compare", "next_table", scope="compare"),
    Action("copy_comparison", "y", "copy", "Compare", "copy", scope="compare"),
    Action("open_run", "enter", "charts", "Compare", "open_run", scope="compare"),
    Action("log_open", "enter", "open", "Logs", "open", scope="logs"),
    Action("log_search", "slash", "search", "Logs", "ask_for('search')", scope="logs",
           help="Search the file for a regular expression, on the box"),
    Action("match_next", "n", "next", "Logs", "step_match(1)", scope="logs",
           help="Go to the next match of the search"),
    Action("match_previous", "N", "previous", "Logs", "step_match(-1)", scope="logs",
           help="Go to the previous match of the search"),
    Action("log_follow", "f", "follow", "Logs", "follow", scope="logs"),
    Action("log_line", "number_sign", "to line", "Logs", "ask_for('line')", scope="logs",
           help="Go to a line by its number, or to a share of the file"),
    Action("log_level", "o", "level", "Logs", "next_level", scope="logs"),
    Action("log_wrap", "w", "wrap", "Logs", "toggle_wrap", scope="logs"),
    Action("log_copy", "y", "copy", "Logs", "copy", scope="logs"),
    Action("log_save", "E", "save", "Logs", "save", scope="logs"),
    Action("window_shorter", "plus", "zoom in", "Box", "change_window(-1)", scope="box",
           help="Show a shorter time range"),
    Action("window_longer", "minus", "zoom out", "Box", "change_window(1)", scope="box",
           help="Show a longer time range, up to the whole life of the box"),
    Action("gpu_quantity", "m", "use or memory", "Box", "next_quantity", scope="box"),
    Action("attach_session", "a", "attach", "Box", "attach", disconnected, scope="box"),
    Action("open_shell", "n", "shell", "Box", "open_shell", not_writable, scope="box"),
    Action("copy_attach", "y", "copy", "Box", "copy_attach", in_bar=False, scope="box"),
    Action("send_line", "i", "send line", "Box", "send_line", not_writable, scope="box", opens_form=True),
    Action("spare", "d", "what can go", "Box", "list_spare", disconnected, scope="box"),
    Action("set_up", "S", "set up", "Box", "set_up", not_writable, in_bar=False, scope="box"),
    Action("box_open", "enter", "open", "Box", "open_focused", in_bar=False, scope="box"),
    Action("box_zoom", "z", "full screen", "Box", "zoom", scope="box"),
    Action("export_gpus", "E", "export", "Box", "export", scope="box"),
    Action("history_open", "enter", "open", "History", "open_run", no_history, scope="history"),
    Action("history_query", "slash", "query", "History", "show_filter", no_history, scope="history",
           help="Find runs by state, metrics, config keys, evaluations, cost and time, as grpo-tui history"),
    Action("history_table", "t", "cost", "History", "next_table", no_history, scope="history"),
    Action("history_sort", "o", "sort", "History", "sort", no_history, scope="history"),
    Action("history_details", "d", "details", "History", "show_details", no_history, scope="history"),
    Action("history_zoom", "z", "full screen", "History", "zoom", in_bar=False, scope="history"),
    Action("tracking", "W", "W&B", "History", "show_tracking", no_tracked_run, in_bar=False),
    Action("palette", "colon,ctrl+p", "command", "Program", "command_palette",
           help="Search all commands"),
    Action("help", "question_mark,f1", "help", "Program", "show_help"),
    Action("suspend", "ctrl+z", "suspend", "Program", "program.suspend", in_bar=False),
    Action("quit", "q", "quit", "Program", "program.quit_app"),
)
# fmt: on


# the user's keys


class KeymapError(UserError):
    """A keymap with an unknown action, an empty key, or one key for two actions."""

    code = "bad_config"


def with_keymap(keymap: Mapping[str, str], actions: tuple[Action, ...] = ACTIONS) -> tuple[Action, ...]:
    """The actions with the user's keys. Raises KeymapError."""
    known = sorted(action.id for action in actions)
    for name in keymap:
        if name not in known:
            raise KeymapError(f"unknown action '{name}'; {did_you_mean(name, known)}")
    changed = tuple(replace(action, key=str(keymap.get(action.id, action.key))) for action in actions)
    owners: dict[str, list[Action]] = {}
    for action in changed:
        for key in action.keys:
            if not key:
                raise KeymapError(f"{action.id}: empty key; remove the line to keep the default")
            for other in owners.setdefault(key, []):
                if action.shares_a_view(other):
                    raise KeymapError(f"key '{key}' is assigned to both {other.id} and {action.id}")
            owners[key].append(action)
    return changed


def read_keymap() -> dict[str, str]:
    """The user's keymap.yaml, or {} without one. Raises KeymapError."""
    file = user_file("keymap.yaml")
    if (found := read_user_file(file, KeymapError)) is None:
        return {}
    if not isinstance(found, dict):
        raise KeymapError(f"{file}: expected lines of 'action: key'")
    keymap = {}
    for name, keys in found.items():
        if isinstance(keys, list):
            keys = ",".join(map(str, keys))
        keymap[str(name)] = "" if keys is None else str(keys)
    try:
        with_keymap(keymap)
    except KeymapError as error:
        raise KeymapError(f"{file}: {error}") from error
    return keymap
