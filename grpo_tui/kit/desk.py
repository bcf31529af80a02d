"""The app as views, dialogs, widgets and commands know it, and the messages by which they go elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from textual import events
from textual.app import App
from textual.content import Content
from textual.driver import Driver
from textual.message import Message
from textual.screen import Screen

from grpo_tui.actions import READONLY, Action, Situation, key_label
from grpo_tui.box.asking import monotonic
from grpo_tui.box.backups import Termination
from grpo_tui.box.charts import ChartsView
from grpo_tui.box.copies import BoxCopy
from grpo_tui.box.gpus import BoxHistory
from grpo_tui.box.kept import KeptAnswers
from grpo_tui.box.link import Connection
from grpo_tui.box.messages import Messages, Severity, StatusMessage
from grpo_tui.box.needs import EndWatch
from grpo_tui.box.run_columns import DEFAULT
from grpo_tui.box.run_list import RunList
from grpo_tui.box.store import Store
from grpo_tui.box.unanswered import UnansweredRequests, requester
from grpo_tui.files import Options, Preferences
from grpo_tui.kit import terminal
from remote.boxes import Box
from remote.protocol import OPERATIONS, RemoteError
from remote.protocol.text import clean

PAUSE_S = 1.0
"""What is typed after such a pause was meant for the view."""


class HeldKeys:
    """Keeps keys, and passes them on one after the other: a key may open what the next one is meant for."""

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._held: list[events.Key] | None = None
        self._passed_on: events.Key | None = None
        self._turn: object = None
        """The release that is at work; another one, or a hold, ends it."""
        self._dropped_at: float | None = None
        """When a key was dropped last; None unless keys are dropped."""

    def hold(self) -> None:
        """Keep the keys from now on, behind those that are kept already."""
        self._held, self._turn = self._held or [], None

    def drop(self) -> None:
        """Drop what is typed from now on, up to enter, escape or a pause: what it was meant for did not open."""
        self._dropped_at = monotonic()

    def _drops(self, event: events.Key) -> bool:
        at, self._dropped_at = self._dropped_at, None
        if at is None or monotonic() - at > PAUSE_S:
            return False
        if event.key not in ("enter", "escape"):
            self._dropped_at = monotonic()
        return True

    def holds(self, event: events.Event) -> bool:
        """Whether an event is a key that is kept, or dropped."""
        if isinstance(event, events.Key) and event.key not in ("ctrl+c", "ctrl+q") and self._drops(event):
            return True
        if self._held is None or not isinstance(event, events.Key) or event.key in ("ctrl+c", "ctrl+q"):
            return False
        if event is self._passed_on:
            return False
        self._held.append(event)
        return True

    def pass_on(self, keys: list[events.Key]) -> None:
        """Pass on keys that a dialog had no use for, behind those that are kept."""
        self._held = [*(self._held or []), *keys]
        self.release()

    def release(self) -> None:
        """Pass on the keys that are kept, each once the one before has had its effect."""
        self._turn = turn = object()
        self._release_next(turn)

    def _release_next(self, turn: object) -> None:
        if turn is not self._turn:
            return
        if not self._held:
            self._held = None
            return
        held = self._held.pop(0)
        self._passed_on = events.Key(held.key, held.character)
        self._app.post_message(self._passed_on)
        self._app.call_after_refresh(self._release_next, turn)


@dataclass
class ShowView(Message):
    """Turn to another view of the selection."""

    view: str


@dataclass
class SelectRun(Message):
    """Select a run as soon as the box lists it."""

    run: str


@dataclass
class OpenStep(Message):
    """Show the completions of a step of the run, or of an evaluation."""

    step: int | None
    evaluation: str = ""


@dataclass
class OpenCheckpoint(Message):
    """Show the completions of an evaluated checkpoint, or say how to evaluate it."""

    step: int


@dataclass
class OpenFlips(Message):
    """Show the problems of an evaluation that ``run`` gets wrong and ``pin`` right."""

    run: str
    folder: str
    step: int
    pin: str


@dataclass
class OpenLine(Message):
    """Show the line of a log that begins at a byte."""

    path: str
    offset: int


@dataclass
class OpenFile(Message):
    """Show a file of the run in the logs."""

    path: str


@dataclass
class GoToStep(Message):
    """Show a step where it is looked at: in the rollouts, else in the charts."""

    step: int


@dataclass
class ShowMetric(Message):
    """Show a metric among the charts, with the cursor on it."""

    metric: str


class Desk(App[None]):
    """What the user works with: one box, its store, requests, dialogs and messages. The app composes it."""

    options: Options
    preferences: Preferences
    actions: tuple[Action, ...]
    run_foreground: Callable[[list[str]], int]
    """Runs a command in the terminal while the app is suspended; returns its exit status."""
    store: Store
    connection: Connection
    kept: KeptAnswers
    """What this machine keeps of the box."""
    termination: Termination
    ends: EndWatch
    """What ended since the app looks."""
    history: BoxHistory
    """What the box's GPUs did since the app looks."""

    def __init__(self, options: Options, driver_class: type[Driver] | None = None) -> None:
        super().__init__(driver_class=driver_class)
        self.options = options
        self.view = "home"
        """The view that is shown."""
        measured = frozenset(rule.metric for rule in options.alarms)
        self.runs = RunList(options.columns or DEFAULT, measured=measured)
        """The list of runs. It outlives a change of box, as the charts do."""
        self.charts = ChartsView()
        """What the charts show."""
        self.last_copy: BoxCopy | None = None
        """The last copy between this machine and a box."""
        self.held_keys = HeldKeys(self)
        self.unanswered = UnansweredRequests()
        self.messages = Messages()
        """What was said in this session."""

    @property
    def copy_at_work(self) -> BoxCopy | None:
        """The copy that has not ended yet."""
        return self.last_copy if self.last_copy is not None and not self.last_copy.over else None

    @property
    def is_first_start(self) -> bool:
        """Whether the user has no box yet, and this machine no run."""
        return self.options.has_no_boxes and self.connection.box.is_local and not self.store.runs

    # the box ---------------------------------------------------------------------------------------------

    def work(self, group: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function in a worker. A coroutine created here would warn if the app exits before it runs."""
        self.run_worker(work, group=group, exclusive=True, exit_on_error=False, description=group)

    async def request(self, op: str, reply_s: float = 30.0, **params: Any) -> dict[str, Any]:
        """Send a request to the box. Raises RemoteError."""
        operation = OPERATIONS[op]
        if self.options.readonly and operation.changes(params):
            raise RemoteError("read_only", READONLY, "start without --readonly")
        if any(field.name == "by" for field in fields(operation.request)):
            params.setdefault("by", requester())
        if operation.changes(params):
            return await self.unanswered.request(self.connection, op, reply_s, params)
        return await asyncio.wrap_future(self.connection.request(op, reply_s, **params))

    def open_box(self) -> None:
        """Connect to the box, in a thread."""
        threading.Thread(target=self.connection.open, name="open-box", daemon=True).start()

    async def use_box(self, box: Box) -> None:
        """Switch to another box. Runs on the current one continue."""
        raise NotImplementedError

    # actions and keys ------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        """Text of the first key of an action."""
        return next(key_label(action.keys[0]) for action in self.actions if action.id == name)

    def is_free(self, key: str) -> bool:
        """Whether the user has not given a key of vi to an action of the view that is shown."""
        here = [one for one in self.actions if one.is_in(self.view) and one.id != "log_next"]
        return all(key not in one.keys for one in here)

    def situation(self) -> Situation:
        return Situation(self.store, self.options.readonly, self.view, self.options.no_history)

    def help_of(self, action: Action) -> str:
        """What an action of the view does, as a sentence for the help screen and the palette."""
        raise NotImplementedError

    async def action_act(self, name: str) -> None:
        """Run an action, or notify why it is not available now."""
        raise NotImplementedError

    def holds(self, event: events.Event) -> bool:
        """Whether an event is a key that belongs to what is being opened."""
        return self.held_keys.holds(event)

    def release_keys(self) -> None:
        """Pass on the keys that were pressed while something was being opened."""
        self.held_keys.release()

    # what is shown ---------------------------------------------------------------------------------------

    @property
    def chosen_checkpoint(self) -> int | None:
        """The step of the checkpoint under the cursor, where the user chooses among them; else None."""
        raise NotImplementedError

    def tick(self) -> None:
        """Request what is due, and update what is shown."""
        raise NotImplementedError

    def tick_view(self) -> None:
        """Update the view that is shown."""
        raise NotImplementedError

    async def show_dialog(self, dialog: Screen[Any]) -> Any:
        return await self.push_screen_wait(dialog)

    def show_error(self, title: str, message: str, hint: str = "") -> None:
        """Show a dialog with an error and its hint."""
        raise NotImplementedError

    # messages --------------------------------------------------------------------------------------------

    def say(
        self, text: str, title: str = "", severity: Severity = "information", *, run: str = "", answers: bool = False
    ) -> None:
        """Show a message on the line at the bottom. ``answers``: to a key that the user just pressed."""
        store = self.store
        self.messages.add(StatusMessage(text, title, severity, store.box, run, store.now(), answers))
        self.show_message()

    def receipt(self, title: str, detail: str = "", *, run: str = "") -> None:
        self.say(detail or title, title if detail else "", run=run)

    def warn(self, message: str, title: str = "", *, run: str = "") -> None:
        self.say(message, title, "warning", run=run)

    def show_message(self) -> None:
        """Bring the line of the screen that is shown up to date."""
        raise NotImplementedError

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: Severity = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """What Textual itself says, as that a screenshot was saved."""
        self.say(Content.from_markup(message).plain if markup else message, title, severity)

    def action_show_messages(self) -> None:
        """Show all messages of this session."""
        raise NotImplementedError

    def copy(self, text: str, what: str) -> None:
        """Copy a text to the clipboard of the terminal, and show what was copied ("sample 3 of step 1,702")."""
        self.work("copy", partial(self._copy, clean(text), what))

    async def _copy(self, text: str, what: str) -> None:
        if not text:
            self.warn(f"nothing to copy: {what} is empty")
            return
        self.copy_to_clipboard(text)
        notes = await terminal.problems(text)
        self.receipt(f"copied: {what}, {len(text):,} character{'s' if len(text) > 1 else ''}", "; ".join(notes))
