"""The app: one box, its store, one tick. It opens no socket before the first frame and shows no traceback ever."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App, SystemCommand
from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from grpo_tui.actions import ACTIONS, Action, Situation, key_words
from grpo_tui.attach import RunForeground, call_in_foreground
from grpo_tui.model.connection import Connection, MakeClient, make_box_client
from grpo_tui.model.formatting import LIVE, state_words
from grpo_tui.model.store import RunRow, Store
from grpo_tui.operations import Operations
from grpo_tui.screens.home import HomeScreen
from grpo_tui.themes import DARK, LIGHT, OWN_VARIABLES, THEMES
from grpo_tui.widgets.notice import Notice
from grpo_tui.widgets.runs import RunsPanel
from remote.boxes import Box
from remote.events import BoxGreeted, ClientEvent, HostKeyAsked, Link, RunsReported, SessionsReported
from remote.protocol import RemoteError

TICK_S = 0.25
DRAIN_S = 0.03
"""So long a batch of events may keep the app from its keys."""
FOLLOW_AFTER_S = 0.15
"""A run is followed when the cursor has rested on it so long."""
SHOWN_FOR_S = 10.0
IDLE_SHOWN_FOR_S = 30.0
"""Somebody else may evaluate a run that is over."""
"""A live run's checkpoints are asked for again after so long, besides whenever something happened."""


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    box: Box
    boxes_file: Path | None = None
    demo_root: Path | None = None
    readonly: bool = False
    keymap: dict[str, str] | None = None
    actions: tuple[Action, ...] = ACTIONS
    look_up: Callable[[Box], Box] = lambda box: box
    """A box as boxes.yaml has it now; the same where that has none of its name. Raises BoxesError."""

    @property
    def demo(self) -> bool:
        return self.demo_root is not None


class EventsArrived(Message):
    """The client has put events into the inbox."""


class GrpoApp(App[None]):
    """Reinforcement-learning runs on a rented box, from one terminal."""

    TITLE = "grpo-tui"
    CSS_PATH = ["styles/app.tcss", "styles/home.tcss", "styles/dialogs.tcss"]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = True
    AUTO_FOCUS = None

    def __init__(
        self,
        options: Options,
        *,
        make_client: MakeClient = make_box_client,
        run_foreground: RunForeground = call_in_foreground,
        now: Callable[[], float] = time.time,
        make_model_command: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.options = options
        self.readonly = options.readonly
        self.operations = Operations(self)
        self._make_client, self._run_foreground, self._now = make_client, run_foreground, now
        self._make_model_command = make_model_command
        self._awaited_run: str | None = None
        self._states: dict[str, str] = {}
        self._evaluating: set[str] = set()
        self._shown_key: object = None
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = os.environ.get("TEXTUAL_THEME") or "grpo-dark"
        if self.theme not in self.available_themes:
            self.theme = "grpo-dark"
        self._take_box(options.box)

    def _take_box(self, box: Box) -> None:
        self.store = Store(box.name, box.price_per_hour, self._now)
        wake = lambda: self.post_message(EventsArrived())  # noqa: E731
        self.connection = Connection(box, self.store, wake, self._make_client)

    # start, tick, end ------------------------------------------------------------------------------------

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Other themes lack our own colours: they get those of ours that has their lightness."""
        theme = self.get_theme(self.theme)
        own = LIGHT if theme is not None and not theme.dark else DARK
        return {name: own.variables[name] for name in OWN_VARIABLES}

    def get_default_screen(self) -> Screen[Any]:
        return HomeScreen(self.store, self.options.actions)

    def on_mount(self) -> None:
        if self.options.keymap:
            self.set_keymap(self.options.keymap)
        self.set_interval(TICK_S, self._tick)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        """After the first frame: now what takes time may begin."""
        if self.options.demo_root is not None:
            self.home.query_one(Notice).launch_hint = (
                "press [bold $primary]n[/], then [bold $primary]enter[/]: "
                "a tiny model learns to add\n\n[$grpo-muted]half of its sums are right; watch the reward climb[/]"
            )
            self.run_worker(self._demo(), group="demo", description="the demo's model", exit_on_error=False)
        self._open(self.connection)

    def _open(self, connection: Connection) -> None:
        threading.Thread(target=connection.open, name="open-box", daemon=True).start()

    async def _demo(self) -> None:
        from grpo_tui import demo
        from grpo_tui.screens.demo_setup import DemoSetupScreen

        root = self.options.demo_root
        if root is None or demo.model_is_there(root):
            return
        if not await self.push_screen_wait(DemoSetupScreen(root, self._make_model_command)):
            self.exit()

    @property
    def home(self) -> HomeScreen:
        """The screen under the dialogs."""
        return next(screen for screen in self.screen_stack if isinstance(screen, HomeScreen))

    def on_events_arrived(self) -> None:
        if self.connection.inbox.drain(DRAIN_S, self._take):
            self.post_message(EventsArrived())

    def _take(self, event: ClientEvent) -> None:
        self.connection.take(event)
        if isinstance(event, RunsReported):
            self._runs_reported()
        elif isinstance(event, SessionsReported):
            self._tell_evaluations()
        elif isinstance(event, HostKeyAsked):
            self._work("host key", self.operations.answer_host_key)
        elif isinstance(event, BoxGreeted):
            self._work("doctor", self.operations.examine)

    def _tick(self) -> None:
        if self.screen_stack and any(isinstance(screen, HomeScreen) for screen in self.screen_stack):
            self.home.tick()
            self._refresh_shown()

    def _refresh_shown(self) -> None:
        """Checkpoints and evaluations are asked for when something happened, and now and then."""
        store, row = self.store, self.store.run
        if row is None or not store.connected or store.link.state is Link.STALE:
            return
        happened = store.logs.version["events"] if store.logs else 0
        busy = row.is_live or bool(store.sessions_of(row.name))
        turn = int(self._now() // (SHOWN_FOR_S if busy else IDLE_SHOWN_FOR_S))
        key = (row.name, row.state, happened, tuple(store.sessions_of(row.name)), turn)
        if key != self._shown_key:
            self._shown_key = key
            self._work("show", partial(self.operations.refresh_shown, row.name))

    def _work(self, group: str, work: Callable[[], Awaitable[None]]) -> None:
        """Begin it in a worker; a coroutine made here would be told of in the terminal if the app ends before that."""
        self.run_worker(work, group=group, exclusive=True, exit_on_error=False, description=group)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            error = event.worker.error
            self.show_error(
                "something went wrong in this program",
                RemoteError(
                    "bug", f"{type(error).__name__}: {error}", f"while: {event.worker.description}; runs go on"
                ),
            )

    def show_error(self, title: str, error: RemoteError) -> None:
        """A dialog with what went wrong and the way out."""
        from grpo_tui.screens.dialog import MessageScreen

        self.push_screen(MessageScreen(title, error.message, error.hint))

    # which run -------------------------------------------------------------------------------------------

    def _runs_reported(self) -> None:
        store = self.store
        names = [row.name for row in store.runs or ()]
        if self._awaited_run in names:
            self._select(self._awaited_run)
            self._awaited_run = None
        elif store.selected not in names:
            live = store.live_runs()
            self._select(live[0].name if live else names[0] if names else None)
        self._tell_endings(store.runs or [])
        self.connection.follow_selected()

    def _tell_endings(self, rows: list[RunRow]) -> None:
        """A run that ended while one looked on is worth a word."""
        for row in rows:
            before = self._states.get(row.name)
            self._states[row.name] = row.state
            if before in LIVE and row.state not in LIVE:
                glyph, word, tone = state_words(row.state)
                more = str(row.error.get("summary", "")) or f"at step {row.step}"
                if row.state == "finished" and self._waits_for_evaluation(row.name):
                    more += f"; {self._key_of('eval')} evaluates its checkpoints"
                severity = "error" if tone == "bad" else "information"
                self.notify(more, title=f"{glyph} {row.name} {word}", severity=severity, markup=False)  # type: ignore[arg-type]

    def _waits_for_evaluation(self, run: str) -> bool:
        """Whether a run is the selected one, and no checkpoint of it has been evaluated."""
        return run == self.store.selected and not any(view.evaluations for view in self.store.checkpoints())

    def _key_of(self, action: str) -> str:
        return next(key_words(one.all_keys[0]) for one in self.options.actions if one.id == action)

    def _tell_evaluations(self) -> None:
        """An evaluation is over when its session is: say how it went."""
        for session in self.store.sessions:
            name = str(session.get("name", ""))
            if not name.startswith("eval_"):
                continue
            if not session.get("dead"):
                self._evaluating.add(name)
            elif name in self._evaluating:
                self._evaluating.discard(name)
                run, code = name.removeprefix("eval_"), session.get("exit_status")
                if code:
                    told = partial(self.operations.tell_failed_evaluation, run, name, int(code))
                    self._work(f"words of {name}", told)
                else:
                    self.notify("its figures stand beside the checkpoints", title=f"✔ {run} evaluated")

    def forget_evaluation(self, session: str) -> None:
        """An evaluation that the user ends needs no word when it is over."""
        self._evaluating.discard(session)

    def choose_when_listed(self, run: str) -> None:
        """Select a run as soon as the box lists it."""
        if any(row.name == run for row in self.store.runs or ()):
            self._select(run)
        else:
            self._awaited_run = run

    def _select(self, run: str | None) -> None:
        self.store.select(run)
        self.set_timer(FOLLOW_AFTER_S, self._follow_if_still, name=run)
        self.home.tick()

    def _follow_if_still(self) -> None:
        self.connection.follow_selected()

    def on_runs_panel_run_chosen(self, event: RunsPanel.RunChosen) -> None:
        self._select(event.name)

    async def use_box(self, box: Box) -> None:
        """Turn to another box; nothing on the present one ends."""
        self.connection.close()
        self._awaited_run, self._states, self._shown_key = None, {}, None
        self._evaluating.clear()
        self._take_box(box)
        await self.home.turn_to(self.store)
        self._open(self.connection)

    # actions ---------------------------------------------------------------------------------------------

    def situation(self) -> Situation:
        return Situation(self.store, self.readonly)

    async def action_act(self, name: str) -> None:
        """Do an action of the registry, or say why it cannot be done now."""
        action = next(action for action in self.options.actions if action.id == name)
        if reason := action.reason(self.situation()):
            self.notify(reason, title=f"{action.label}: not now", severity="warning", timeout=4, markup=False)
            return
        local = getattr(self, f"_act_{name}", None)
        if local is not None:
            local()
        else:
            self._work(f"act {name}", getattr(self.operations, name))

    def _act_zoom(self) -> None:
        self.home.zoom()

    def _act_back(self) -> None:
        self.home.back()

    def _act_log_next(self) -> None:
        from grpo_tui.widgets.lines_panel import LinesPanel

        log = self.home.query_one("#log", LinesPanel)
        log.show_tab(log.active + 1)

    def _act_smooth(self) -> None:
        self.notify("curves are smoothed" if self.home.smooth() else "raw curves", timeout=2)

    def _act_filter(self) -> None:
        self.home.ask_filter()

    def _act_palette(self) -> None:
        self.action_command_palette()

    def _act_help(self) -> None:
        from grpo_tui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.options.actions, self.situation()))

    def _act_quit(self) -> None:
        live = self.store.live_runs()
        message = None
        if live:
            named = ", ".join(f"{row.name} ({row.step}/{row.total_steps or '?'})" for row in live)
            again = "grpo-tui --demo" if self.options.demo else f"grpo-tui --box {self.store.box}"
            message = f"{named} {'goes' if len(live) == 1 else 'go'} on, on box {self.store.box}. Look again: {again}"
        self.exit(message=message)

    def _save_picture(self) -> None:
        """To the downloads where there are any, else to the home directory, once the palette is off the screen."""
        import platformdirs

        downloads = Path(platformdirs.user_downloads_dir())
        folder = downloads if downloads.is_dir() else Path.home()
        self.set_timer(0.2, lambda: self.deliver_screenshot(path=str(folder)))

    async def action_quit(self) -> None:
        self._act_quit()

    def action_help_quit(self) -> None:
        """ctrl+c: out of habit, or to leave."""
        self.notify("ctrl+q leaves from anywhere, q from here; runs on the box go on", title="ctrl+c ends nothing here")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        situation = self.situation()
        for action in self.options.actions:
            if action.id == "palette":
                continue
            reason = action.reason(situation)
            words = f"{action.help}  (not now: {reason})" if reason else action.help
            yield SystemCommand(action.label, words, lambda name=action.id: self.run_worker(self.action_act(name)))
        yield SystemCommand("theme", "Choose the colours", self.action_change_theme)
        yield SystemCommand("screenshot", "Save a picture of the screen (SVG)", self._save_picture)

    # the terminal ----------------------------------------------------------------------------------------

    def in_foreground(self, argv: list[str], words: str) -> tuple[int, str]:
        """Give the terminal to a command and take it back: (exit status, why it could not be given).

        The call is synchronous, and no exception leaves the ``with``: either would leave the terminal broken.
        """
        from textual.app import SuspendNotSupported

        problem, code = "", 0
        try:
            with self._suspended():
                try:
                    print(f"\n{' '.join(argv)}\n{words}\n", file=sys.__stdout__, flush=True)
                    code = self._run_foreground(argv)
                except BaseException as error:
                    problem = str(error) or type(error).__name__
        except SuspendNotSupported:
            problem = "this terminal cannot be handed over"
        self.refresh(layout=True)
        return code, problem

    def _suspended(self) -> Any:
        if self.is_headless and self._run_foreground is not call_in_foreground:
            from contextlib import nullcontext

            return nullcontext()
        return self.suspend()

    def on_unmount(self) -> None:
        self.connection.close()
        if report := os.environ.get("GRPO_TUI_REPORT"):
            # What was received of each log, to be compared with the files byte for byte.
            Path(report).write_text(json.dumps(self.connection.followed(), indent=1))
