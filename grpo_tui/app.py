"""The app: it composes the views, the tables and the box."""

from __future__ import annotations

import importlib
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.actions import parse
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from grpo_tui import background
from grpo_tui.actions import Action, with_keymap
from grpo_tui.background import BEAT_S, Pulse
from grpo_tui.box.asking import CURSOR_S
from grpo_tui.box.backups import Termination
from grpo_tui.box.gpus import BoxHistory
from grpo_tui.box.kept import AnswerCache, KeptAnswers
from grpo_tui.box.link import Connection, MakeClient, make_box_client
from grpo_tui.box.needs import EndWatch, Pace, end_notice, job_done, job_failed
from grpo_tui.box.rows import RunRow
from grpo_tui.box.store import Store
from grpo_tui.files import Options, Preferences
from grpo_tui.history.writer import HistoryWriter
from grpo_tui.kit.attach import RunForeground, call_in_foreground
from grpo_tui.kit.bars import StatusLine
from grpo_tui.kit.desk import (
    Desk,
    GoToStep,
    OpenCheckpoint,
    OpenFile,
    OpenFlips,
    OpenLine,
    OpenStep,
    SelectRun,
    ShowMetric,
    ShowView,
)
from grpo_tui.kit.theme import DARK, LIGHT, OWN_VARIABLES, THEMES
from grpo_tui.memory import Memory, Recall
from grpo_tui.views.home.runs import RunsPanel
from grpo_tui.views.home.screen import HomeScreen
from grpo_tui.views.home.summary import SummaryPanel
from grpo_tui.views.registry import Views
from remote.boxes import Box
from remote.events import (
    BoxGreeted,
    ClientEvent,
    HostKeyAsked,
    QuestionAsked,
    QuestionWithdrawn,
    RunsReported,
    SessionsReported,
)
from remote.protocol.text import clean

VIEW_STYLES = sorted(Path(__file__).parent.glob("views/*/styles.tcss"))
EXAMINE_AFTER_S = 2.0
"""The doctor waits this long for the first list of runs, which is what the user looks for."""


class EventsArrived(Message):
    """The client has put events into the inbox."""


class GrpoApp(Desk):
    """Reinforcement-learning runs on a rented box, from one terminal."""

    TITLE = "grpo-tui"
    CSS_PATH = ["styles/app.tcss", "styles/dialogs.tcss", *VIEW_STYLES]  # noqa: RUF012
    AUTO_FOCUS = None
    BINDINGS: ClassVar = [Binding("ctrl+z", "act('suspend')", show=False, priority=True, id="suspend")]
    COMMANDS: ClassVar = {
        lambda: importlib.import_module("grpo_tui.palette").Commands,
        lambda: importlib.import_module("grpo_tui.palette").Finder,
    }

    def __init__(
        self,
        options: Options,
        *,
        make_client: MakeClient | None = None,
        run_foreground: RunForeground = call_in_foreground,
        now: Callable[[], float] = time.time,
        make_model_command: list[str] | None = None,
    ) -> None:
        super().__init__(options)
        self.actions = with_keymap(options.keymap)
        self._make_client = make_client or partial(make_box_client, readonly=options.readonly)
        self.run_foreground, self._now = run_foreground, now
        self.pulse = Pulse()
        for theme in THEMES:
            self.register_theme(theme)
        self.preferences = Preferences.load(options.fresh)
        wanted = os.environ.get("TEXTUAL_THEME") or self.preferences.theme
        # Textual starts with TEXTUAL_THEME, which it does not know yet, and applies a theme only if the name changes.
        self.theme = LIGHT.name
        self.theme = DARK.name
        if wanted in self.available_themes:
            self.theme = wanted
        self._cache = AnswerCache(options.cache, now=now) if options.cache is not None else None
        self._set_box(options.box)
        self._silent: Screen[Any] | None = None
        """The screen that shows no message, and there is none: nothing to look up on it."""
        self.views: Views = Views(self)
        self._make_model_command = make_model_command
        self.memory = Memory(self, self.views)
        self.memory.restore()

    def _set_box(self, box: Box) -> None:
        self.store = Store(box.name, box.price_at(self._now()), self._now)
        self.connection = Connection(box, self.store, lambda: self.post_message(EventsArrived()), self._make_client)
        self.ends, self._pace = EndWatch(self.store), Pace()
        self.termination = Termination(self.store, is_local=box.is_local)
        self._awaited_run: str | None = None
        self._to_examine = False
        writer = HistoryWriter(self.options.history, box) if self.options.history is not None else None
        self.history, self._refresher = BoxHistory(), background.Refresher(self, writer)
        self.kept = KeptAnswers(box, self._cache, writer.put if writer is not None else lambda *_: None)
        self._recall = Recall(self, self.runs_reported)

    # start, tick, end ------------------------------------------------------------------------------------

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Other themes lack this app's own colors and borrow those of our theme with the same lightness."""
        theme = self.get_theme(self.theme)
        own = LIGHT if theme is not None and not theme.dark else DARK
        return {name: own.variables[name] for name in OWN_VARIABLES}

    def refresh_css(self, animate: bool = True) -> None:
        """As usual. Before there is a screen, Textual would parse every style sheet for each change of the theme."""
        if self.screen_stack:
            super().refresh_css(animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())

    def get_default_screen(self) -> Screen[Any]:
        return self.views.home

    def on_mount(self) -> None:
        self.set_keymap(dict(self.options.keymap))
        self.theme_changed_signal.subscribe(self, lambda theme: setattr(self.preferences, "theme", theme.name))
        self.set_interval(BEAT_S, self._beat)
        self.call_after_refresh(lambda: self._recall.tick())
        self.open_box()
        if self.options.demo:
            self.call_after_refresh(self._start_demo)

    @property
    def home(self) -> HomeScreen:
        return self.views.home

    def _start_demo(self) -> None:
        from grpo_tui.dialogs import demo

        self.home.set_launch_hint(demo.launch_hint(self.key("launch")))
        self.work("demo model", partial(demo.make_demo, self, self._make_model_command))

    def on_events_arrived(self) -> None:
        self.pulse.news()
        if rest_s := self.connection.drain(self._take):
            self.set_timer(rest_s, lambda: self.post_message(EventsArrived()))

    def _take(self, event: ClientEvent) -> None:
        self.connection.take(event)
        if isinstance(event, RunsReported):
            self._examine()
            self.runs_reported()
            self.kept.keep_runs(event.runs)
        elif isinstance(event, SessionsReported):
            self._announce_jobs()
        elif isinstance(event, HostKeyAsked):
            self.work("host key", partial(background.answer_host_key, self))
        elif isinstance(event, QuestionAsked):
            self.work("question", partial(background.answer_question, self, event))
        elif isinstance(event, QuestionWithdrawn):
            background.withdraw_question(self)
        elif isinstance(event, BoxGreeted):
            self._to_examine = True
            self.set_timer(EXAMINE_AFTER_S, self._examine)
            self.work("forwards", partial(background.open_forwards, self))
            self.work("unanswered requests", partial(background.ask_again, self))

    def _beat(self) -> None:
        """Update the views when it is due."""
        if self.pulse.beat():
            self.tick()
        self.show_message()

    def _examine(self) -> None:
        """Run the doctor once a connection."""
        if self._to_examine:
            self._to_examine = False
            self.work("doctor", partial(background.examine_box, self))

    def tick(self) -> None:
        if self.home.is_mounted:
            self.history.take(self.store)
            self.home.update_needs()
            self._refresher.tick()
            if self.store.connected:
                self.views.shown.request_data()
            self.memory.tick()
            self._recall.tick()
            self.views.shown.tick()

    def tick_view(self) -> None:
        self.views.shown.tick()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.is_finished:
            self.pulse.answered()
        if event.worker.is_finished and event.worker.group.startswith("action "):
            self.release_keys()  # no form was opened
        if event.state is WorkerState.ERROR:
            error = event.worker.error
            message = clean(f"{type(error).__name__}: {error}")
            where = f"during: {event.worker.description}; runs continue"
            self.show_error("internal error", message, where)

    def exit(self, *args: Any, **options: Any) -> None:
        """Exit, and remember what the next start shows."""
        self.memory.end()
        super().exit(*args, **options)

    def on_unmount(self) -> None:
        self.memory.end()
        self.connection.close()

    # which run -------------------------------------------------------------------------------------------

    def runs_reported(self) -> None:
        """The list of runs is another one: keep the selection, and announce what ended."""
        store = self.store
        names = [row.name for row in store.runs or ()]
        if self._awaited_run in names:
            self._select(self._awaited_run)
            self._awaited_run = None
        elif store.selected not in names and not (names and self.home.hides_selection):
            self._select(self.memory.run_to_select())
        for row in self._pace.first(self.ends.ended_runs()):
            self._announce_end(row)
        self.connection.follow_selected()

    def _announce_end(self, row: RunRow) -> None:
        title, message, is_bad = end_notice(self.store, row, self.key("eval"))
        self.say(message, title, "error" if is_bad else "information", run=row.name)

    def _announce_jobs(self) -> None:
        for session, run, code in self._pace.first(self.ends.ended_jobs()):
            if code:
                self.work(f"output of {session}", partial(self._announce_failure, session, run, code))
            else:
                self.receipt(*job_done(session, run), run=run)

    async def _announce_failure(self, session: str, run: str, code: int) -> None:
        output = await background.last_output(self, session) or f"exit code {code}, no output"
        self.say(output, job_failed(session, run, code), "error", run=run)

    @property
    def chosen_checkpoint(self) -> int | None:
        panel = self.home.query_one(SummaryPanel)
        return panel.checkpoint.step if panel.has_focus and panel.checkpoint is not None else None

    def on_select_run(self, event: SelectRun) -> None:
        if any(row.name == event.run for row in self.store.runs or ()):
            self._select(event.run)
        else:
            self._awaited_run = event.run

    def _select(self, run: str | None) -> None:
        self.pulse.wake()
        self.store.select(run)
        self.set_timer(CURSOR_S, self._follow, name=run)
        self.home.tick()

    def _follow(self) -> None:
        """The cursor rests: follow the run, and request its curves at once."""
        self.connection.follow_selected()
        self.tick()

    def on_runs_panel_run_chosen(self, event: RunsPanel.RunChosen) -> None:
        self._select(event.name)

    async def use_box(self, box: Box) -> None:
        self.connection.close()
        self._set_box(box)
        await self.views.set_store(self.store)
        self.open_box()

    # jumps -----------------------------------------------------------------------------------------------

    def on_show_view(self, event: ShowView) -> None:
        self.views.show(event.view)

    def on_open_step(self, event: OpenStep) -> None:
        self.views.rollouts.open_step(event.step, event.evaluation)
        self.views.show("rollouts")

    def on_open_checkpoint(self, event: OpenCheckpoint) -> None:
        if problem := self.views.rollouts.open_evaluation(event.step):
            self.warn(problem)
        else:
            self.views.show("rollouts")

    def on_open_flips(self, event: OpenFlips) -> None:
        self.views.rollouts.compare_runs(event.run, event.folder, event.step, event.pin)
        self.views.show("rollouts")

    def on_open_line(self, event: OpenLine) -> None:
        self.views.logs.open_line(event.path, event.offset)
        self.views.show("logs")

    def on_open_file(self, event: OpenFile) -> None:
        self.views.logs.open_file(event.path)
        self.views.show("logs")

    def on_go_to_step(self, event: GoToStep) -> None:
        if self.view == "rollouts":
            self.views.rollouts.go_to_step(event.step)
        else:
            self.views.show("charts")
            self.views.charts.go_to_step(event.step)

    def on_show_metric(self, event: ShowMetric) -> None:
        self.views.show("charts")
        self.views.charts.show_metric(event.metric)

    # actions ---------------------------------------------------------------------------------------------

    def help_of(self, action: Action) -> str:
        return action.help or (inspect.getdoc(self.target_of(action).func) or "").partition("\n")[0].removesuffix(".")

    def target_of(self, action: Action) -> partial[Awaitable[None] | None]:
        """What an action runs: a command, or a method of the view that is shown, else of the app."""
        file, name, arguments = parse(action.do)
        if file:
            return partial(getattr(importlib.import_module(f"grpo_tui.commands.{file}"), name), self)
        name = f"action_{name}"
        return partial(getattr(self.views.shown, name, None) or getattr(self, name), *arguments)

    def action_show_view(self, view: str) -> None:
        """Turn to another view of the selection."""
        self.views.show(view)

    def action_step_back(self) -> None:
        """Go back one step: zoomed panel, filter, crosshair, then Home."""
        if not self.views.shown.back():
            self.views.show("home")

    def action_show_help(self) -> None:
        """Show all keys."""
        from grpo_tui.kit.help import HelpScreen

        self.push_screen(HelpScreen(self.actions, self.situation(), self.view))

    async def action_act(self, name: str) -> None:
        if (run := self.home.query_one(RunsPanel).settle()) is not None:
            self._select(run)  # a key acts on the run under the cursor
        action = next(action for action in self.actions if action.id == name)
        reason = action.reason(self.situation())
        on_selection = action.group == "Runs" and action.id not in ("launch", "restore")
        if on_selection and self.view == "home" and self.home.hides_selection:
            what = f"{run} is not in the list" if (run := self.store.selected) else "no run is in the list"
            reason = f"{what}; {self.key('back')} shows all runs"
        if reason:
            if action.takes_text:
                self.held_keys.drop()
            run = self.store.selected or "" if on_selection else ""
            self.say(reason, f"{action.label}: not available", "warning", run=run, answers=True)
        elif inspect.iscoroutinefunction(target := self.target_of(action)):
            if action.opens_form:
                self.held_keys.hold()
            self.work(f"action {name}", target)
        else:
            if action.opens_line:
                self.held_keys.hold()  # the line takes the focus only after keys that have arrived with this one
                self.call_after_refresh(self.release_keys)
            target()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, (events.InputEvent, events.Resize)):
            self.pulse.wake()
        if isinstance(event, (events.Key, events.MouseDown)):
            self.messages.used()
            self.show_message()
        if not self.holds(event):
            await super().on_event(event)

    def show_error(self, title: str, message: str, hint: str = "") -> None:
        from grpo_tui.kit.dialog import MessageScreen

        self.push_screen(MessageScreen(title, message, hint))

    def show_message(self) -> None:
        if not self.screen_stack:
            return
        silent = self.screen if self.messages.shown() is None else None
        if silent is None or silent is not self._silent:
            for line in self.screen.query(StatusLine):
                line.tick()
        self._silent = silent

    def action_show_messages(self) -> None:
        from grpo_tui.dialogs.messages import MessagesScreen

        if not isinstance(self.screen, MessagesScreen):
            self.push_screen(MessagesScreen())

    def action_command_palette(self) -> None:
        from grpo_tui.palette import CommandsPalette

        if not isinstance(self.screen, CommandsPalette):
            self.held_keys.hold()  # a command is typed faster than the palette opens
            self.push_screen(CommandsPalette(id="--command-palette"))

    def _fatal_error(self) -> None:
        """Exit with a traceback that does not steer the terminal. Textual has no public hook for it."""
        from grpo_tui.kit.crash_report import CrashReport

        self.panic(CrashReport())

    async def action_quit(self) -> None:
        if (before := getattr(self.screen, "before_quit", None)) is not None:
            await before()
        await self.action_act("quit")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "act" and parameters == ("suspend",):
            return not hasattr(self.focused, "undo")  # a text area takes the key for that
        return super().check_action(action, parameters)

    def action_help_quit(self) -> None:
        """Ctrl+C, which Textual binds to this action."""
        self.receipt("Ctrl+C is disabled here", "q or Ctrl+Q quits; runs on the box continue")
