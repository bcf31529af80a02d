"""The app: one box, its store, one tick. No socket is opened before the first frame."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.message import Message
from textual.notifications import Notify
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from grpo_tui import background, clipboard, last_screen, toasts, unanswered
from grpo_tui.actions import tunnels
from grpo_tui.actions.action import Situation, key_label
from grpo_tui.actions.keymap import with_keymap
from grpo_tui.actions.reasons import READONLY
from grpo_tui.announcements import EndWatch, Pace, end_notice, job_done, job_failed
from grpo_tui.attach import RunForeground, call_in_foreground
from grpo_tui.copies import Copies
from grpo_tui.covering_driver import covering_driver
from grpo_tui.held_keys import HeldKeys
from grpo_tui.history.writer import HistoryWriter
from grpo_tui.model.answer_cache import AnswerCache
from grpo_tui.model.box_history import BoxHistory
from grpo_tui.model.connection import Connection, MakeClient, make_box_client
from grpo_tui.model.pulse import BEAT_S, Pulse
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store
from grpo_tui.model.termination import Termination
from grpo_tui.options import Options
from grpo_tui.preferences import Preferences
from grpo_tui.recall import Recall
from grpo_tui.remember import Memory
from grpo_tui.screens.home import HomeScreen
from grpo_tui.startup import Startup
from grpo_tui.themes import DARK, LIGHT, OWN_VARIABLES, THEMES
from grpo_tui.views import Views
from grpo_tui.widgets.runs import RunsPanel
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
from remote.gate import clean
from remote.protocol import OPERATIONS, RemoteError

FIRST_STYLES = ("app", "home")
"""Parsed before the first frame; the others after it."""
EXAMINE_AFTER_S = 2.0
"""The doctor waits this long for the first list of runs, which is what the user looks for."""
FOLLOW_AFTER_S = 0.15
"""The logs of a run are followed once the cursor has rested on it this long."""


class EventsArrived(Message):
    """The client has put events into the inbox."""


class GrpoApp(App[None]):
    """Reinforcement-learning runs on a rented box, from one terminal."""

    TITLE = "grpo-tui"
    CSS_PATH = [f"styles/{name}.tcss" for name in FIRST_STYLES]  # noqa: RUF012
    AUTO_FOCUS = None
    BINDINGS: ClassVar = [Binding("ctrl+z", "act('suspend')", show=False, priority=True, id="suspend")]
    COMMANDS = App.COMMANDS | {lambda: importlib.import_module("grpo_tui.finder").Finder}

    def __init__(
        self,
        options: Options,
        *,
        make_client: MakeClient | None = None,
        run_foreground: RunForeground = call_in_foreground,
        now: Callable[[], float] = time.time,
        make_model_command: list[str] | None = None,
    ) -> None:
        self.covers_last_screen = last_screen.is_shown()
        super().__init__(driver_class=covering_driver() if self.covers_last_screen else None)
        self.options = options
        self.startup = Startup(self)
        self.actions = with_keymap(options.keymap)
        self._make_client = make_client or partial(make_box_client, readonly=options.readonly)
        self.run_foreground, self._now = run_foreground, now
        self.make_model_command = make_model_command
        self.held_keys = HeldKeys(self)
        self.pulse, self._has_ticked = Pulse(), False
        self.unanswered = unanswered.UnansweredRequests()
        self.copies = Copies(self)
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
        self.views = Views(self)
        self.memory = Memory(self, self.preferences)
        self.memory.restore()

    def _set_box(self, box: Box) -> None:
        self.store = Store(box.name, box.price_at(self._now()), self._now)
        self.connection = Connection(box, self.store, lambda: self.post_message(EventsArrived()), self._make_client)
        self._ends, self._pace = EndWatch(self.store), Pace()
        self.termination = Termination(self.store, is_local=box.is_local)
        self._awaited_run: str | None = None
        self._to_examine = False
        history = HistoryWriter(self.options.history, box) if self.options.history is not None else None
        self._refresher, self.recall = background.Refresher(self), Recall(self, self._cache, history)

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
        self.startup.mounted()

    def open_box(self) -> None:
        """Connect to the box, in a thread."""
        threading.Thread(target=self.connection.open, name="open-box", daemon=True).start()

    @property
    def history(self) -> BoxHistory:
        """What the box's GPUs did since the app looks."""
        return self._refresher.history

    @property
    def home(self) -> HomeScreen:
        return self.views.home

    def on_events_arrived(self) -> None:
        self.pulse.news()
        if rest_s := self.connection.drain(self._take):
            self.set_timer(rest_s, lambda: self.post_message(EventsArrived()))

    def _take(self, event: ClientEvent) -> None:
        self.connection.take(event)
        if isinstance(event, RunsReported):
            self._examine()
            self.runs_reported()
            self.recall.keep_runs(event.runs)
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
            self.work("forwards", partial(tunnels.open_forwards, self))
            self.work("unanswered requests", partial(unanswered.ask_again, self))

    def _beat(self) -> None:
        """Update the views when it is due; at the first beat at which it is not, what waits to be shown."""
        if self.pulse.beat():
            self._has_ticked = True
            self.tick()
        elif self._has_ticked:
            self._has_ticked = False
            self.views.refresh_help()

    def _examine(self) -> None:
        """Run the doctor once a connection."""
        if self._to_examine:
            self._to_examine = False
            self.work("doctor", partial(background.examine, self))

    def tick(self) -> None:
        """Request what is due, and update what is shown."""
        if self.home.is_mounted:
            self._refresher.tick()
            self.memory.tick()
            self.recall.tick()
            self.views.shown.tick()

    def work(self, group: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function in a worker. A coroutine created here would warn if the app exits before it runs."""
        self.run_worker(work, group=group, exclusive=True, exit_on_error=False, description=group)

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
        """Exit, and keep the screen for the next start."""
        self.memory.end()
        if self.options.words is not None:
            importlib.import_module("grpo_tui.keep_screen").keep(self, self.options.words)
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
        elif store.selected not in names:
            self._select(self.memory.run_to_select())
        for row in self._pace.first(self._ends.ended_runs()):
            self._announce_end(row)
        self.connection.follow_selected()
        self.startup.release()

    def _announce_end(self, row: RunRow) -> None:
        title, message, is_bad = end_notice(self.store, row, self.key("eval"))
        self.notify(message, title=title, severity="error" if is_bad else "information", markup=False)

    def _announce_jobs(self) -> None:
        for session, run, code in self._pace.first(self._ends.ended_jobs()):
            if code:
                self.work(f"output of {session}", partial(self._announce_failure, session, run, code))
            else:
                self.receipt(*job_done(session, run))

    async def _announce_failure(self, session: str, run: str, code: int) -> None:
        output = await background.last_output(self, session) or f"exit code {code}, no output"
        self.notify(output, title=job_failed(session, run, code), severity="error", timeout=60, markup=False)

    def ignore_evaluation_end(self, session: str) -> None:
        self._ends.ignore_evaluation(session)

    def select_when_listed(self, run: str) -> None:
        """Select a run as soon as the box lists it."""
        if any(row.name == run for row in self.store.runs or ()):
            self._select(run)
        else:
            self._awaited_run = run

    def _select(self, run: str | None) -> None:
        self.pulse.wake()
        self.store.select(run)
        self.set_timer(FOLLOW_AFTER_S, self._follow, name=run)
        self.home.tick()

    def _follow(self) -> None:
        """The cursor rests: follow the run, and request its curves at once."""
        self.connection.follow_selected()
        self.tick()

    def on_runs_panel_run_chosen(self, event: RunsPanel.RunChosen) -> None:
        self._select(event.name)

    async def use_box(self, box: Box) -> None:
        """Switch to another box. Runs on the current one continue."""
        self.connection.close()
        self._set_box(box)
        await self.views.set_store(self.store)
        self.open_box()

    # actions ---------------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        """Text of the first key of an action."""
        return next(key_label(action.keys[0]) for action in self.actions if action.id == name)

    def situation(self) -> Situation:
        return Situation(self.store, self.options.readonly, self.views.name, self.options.history is not None)

    async def action_act(self, name: str) -> None:
        """Run an action, or notify why it is not available now."""
        if (run := self.home.query_one(RunsPanel).settle()) is not None:
            self._select(run)  # a key acts on the run under the cursor
        action = next(action for action in self.actions if action.id == name)
        reason = action.reason(self.situation())
        on_selection = action.group == "Runs" and action.id not in ("launch", "restore")
        if on_selection and self.views.name == "home" and self.home.hides_selection:
            reason = f"{self.store.selected} is not in the list; {self.key('back')} shows all runs"
        if reason:
            self.warn(reason, title=f"{action.label}: not available")
        elif inspect.iscoroutinefunction(action.run):
            if action.opens_form:
                self.held_keys.hold()
            self.work(f"action {name}", partial(action.run, self))
        else:
            action.run(self)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, (events.InputEvent, events.Resize)):
            self.pulse.wake()
        if not self.holds(event):
            await super().on_event(event)

    def holds(self, event: events.Event) -> bool:
        """Whether an event is a key that belongs to what is being opened."""
        return self.held_keys.holds(event)

    def release_keys(self) -> None:
        """Pass on the keys that were pressed while something was being opened."""
        self.held_keys.release()

    async def request(self, op: str, timeout: float = 30.0, **params: Any) -> dict[str, Any]:
        """Send a request to the box. Raises RemoteError."""
        operation = OPERATIONS[op]
        if self.options.readonly and operation.changes(params):
            raise RemoteError("read_only", READONLY, "start without --readonly")
        if any(field.name == "by" for field in fields(operation.request)):
            params.setdefault("by", unanswered.requester())
        if operation.changes(params):
            return await unanswered.request_once(self, op, timeout, params)
        return await asyncio.wrap_future(self.connection.request(op, timeout, **params))

    async def show_dialog(self, dialog: Screen[Any]) -> Any:
        return await self.push_screen_wait(dialog)

    def show_error(self, title: str, message: str, hint: str = "") -> None:
        """Show a dialog with an error and its hint."""
        from grpo_tui.screens.dialog import MessageScreen

        self.push_screen(MessageScreen(title, message, hint))

    def receipt(self, title: str, detail: str = "") -> None:
        self.notify(detail or title, title=title if detail else "", timeout=6, markup=False)

    def copy(self, text: str, what: str) -> None:
        """Copy a text to the clipboard of the terminal, and show what was copied."""
        self.work("copy", partial(clipboard.copy, self, text, what))

    def warn(self, message: str, title: str = "") -> None:
        self.notify(message, title=title, severity="warning", timeout=4, markup=False)

    def on_notify(self, event: Notify) -> None:
        if not toasts.make_room(self._notifications, event.notification):
            event.prevent_default()

    def _fatal_error(self) -> None:
        """Exit with a traceback."""
        from grpo_tui.crash_report import CrashReport

        last_screen.withdraw()
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

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        return importlib.import_module("grpo_tui.commands").commands(self)
