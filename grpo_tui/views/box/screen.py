"""Box: what the machine does and did: GPUs over time, processor, memory, disks, sessions, checks."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from grpo_tui.box.asking import LIVE_S
from grpo_tui.box.store import NO_PRICE, Store
from grpo_tui.kit.attach import attach_command, attach_to
from grpo_tui.kit.desk import Desk
from grpo_tui.kit.dialog import ConfirmScreen, LineInput, TextDialog
from grpo_tui.kit.gpu import GPUS_SHOWN
from grpo_tui.kit.panel import Line, Panel
from grpo_tui.kit.save import save_table
from grpo_tui.views.box.charts import GpuChart, MachinePanel
from grpo_tui.views.box.model import FACTS_S, FILL_COLUMNS, FILL_S, MAX_SESSIONS, SIZES_S, BoxView, gpu_table
from grpo_tui.views.box.panels import ChecksPanel, DisksPanel, SessionsPanel, SpareScreen
from grpo_tui.views.view import ViewScreen, bindings_of
from remote.protocol import RemoteError
from remote.protocol.jobs import MAX_LINE

SLOTS = {"-wide": 8, "-medium": 4, "-narrow": 2}
"""Charts of GPUs that a terminal of each width has room for; one of few rows has half of them."""
COLUMNS = {"-wide": 4, "-medium": 2, "-narrow": 1}
"""How many of them are side by side."""


LEAST_ROWS = 22
"""Rows of a terminal that has room for processor, memory and disks."""


class AboutBox(Line):
    """One line: the window, the machine as far as there is room, and what idles for money."""

    def __init__(self, store: Store, screen: BoxScreen, *, id: str) -> None:
        super().__init__(store, id=id)
        self._box = screen

    def state(self) -> object:
        return (self.render(), self.size.width)

    def render(self) -> Content:
        view = self._box.view
        head = Content.from_markup("[bold $primary]box[/]   $window", window=view.name)
        text = Content()
        if idle := view.idle(self.store):
            text += Content.from_markup("   [$warning]▲ $idle[/]", idle="   ▲ ".join(idle))
        if self.store.price_per_hour is None:
            text += Content.from_markup("   [$text-muted]$text[/]", text=NO_PRICE)
        hidden = len(self.store.gpus or ()) - self._box.shown_gpus
        if hidden > 0:
            count = f"{hidden} more GPU{'s' if hidden > 1 else ''}"
            text += Content.from_markup("   [$text-muted]$count on a larger terminal[/]", count=count)
        return head + self._machine(self.size.width - 2 - head.cell_length - text.cell_length) + text

    def _machine(self, room: int) -> Content:
        """GPUs, address, uptime: the address leaves first, the GPUs last."""
        facts = self._box.view.machine(self.store, self._box.app.connection.box.address())
        for leaving in ("", "address", "uptime"):
            facts.pop(leaving, None)
            found = Content.from_markup("   [$text-muted]$facts[/]", facts=" · ".join(facts.values()))
            if facts and found.cell_length <= room:
                return found
        return Content()


class NoGpu(Panel):
    """In place of the charts on a machine without a GPU."""

    def state(self) -> object:
        return (self.store.versions["gpu"], self.store.versions["link"], self.size)

    def refresh_titles(self) -> None:
        self.set_titles("gpu")

    def render(self) -> Content:
        if self.store.gpus is None:
            problem = self.store.topic_problem("gpu")
            text, tone = (f"? {problem}", "$error") if problem else ("no samples yet", "$text-muted")
            return Content.from_markup(f"[{tone}]$text[/]", text=text)
        cores = (self.store.host or {}).get("cpu_count")
        device = f"; runs use its {cores:.0f} CPU cores" if cores else "; runs use the CPU"
        note = self.store.gpu_note or "no GPU on this box"
        return Content.from_markup("$note[$text-muted]$device[/]", note=note, device=device)


class BoxScreen(ViewScreen):
    """The machine that is selected."""

    NAME = "box"
    MAIN = "#sessions"
    BINDINGS: ClassVar = bindings_of("box")

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._view: BoxView | None = None
        self.shown_gpus = 0

    @property
    def view(self) -> BoxView:
        history = self.app.history
        if self._view is None or self._view.history is not history:
            self._view = BoxView(history)
        return self._view

    @property
    def session(self) -> str:
        """Name of the session under the cursor."""
        return self.query_one(SessionsPanel).current

    def panels(self) -> Iterable[Widget]:
        store = self.store

        def view() -> BoxView:
            return self.view

        yield AboutBox(store, self, id="about")
        yield Container(*(GpuChart(store, view, id=f"gpu-{slot}") for slot in range(max(SLOTS.values()))), id="gpus")
        yield NoGpu(store, id="no-gpu", classes="panel")
        yield Horizontal(MachinePanel(store, view, id="machine"), DisksPanel(store, view, id="disks"), id="middle")
        yield SessionsPanel(store, view, id="sessions")
        yield ChecksPanel(store, id="checks", classes="panel")

    def update(self) -> None:
        """Choose the charts that fit."""
        size = self.width_class
        slots = SLOTS[size] // (2 if self.has_class("-short") else 1)
        indexes = sorted({int(gpu["index"]) for gpu in self.store.gpus or () if gpu.get("index") is not None})
        shown = indexes[: min(slots, GPUS_SHOWN)]
        self.shown_gpus = len(shown)
        for chart, index in zip(self.query(GpuChart), [*shown, *[-1] * SLOTS["-wide"]], strict=False):
            chart.display = index >= 0
            chart.index = index
        self.query_one("#gpus").display = bool(shown)
        self.query_one("#sessions").set_class(not shown, "-all-room")
        self.query_one("#no-gpu").display = not shown
        self.query_one("#middle").display = self.size.height >= LEAST_ROWS
        self.query_one("#gpus").styles.grid_size_columns = max(1, min(COLUMNS[size], len(shown)))

    def request_data(self) -> None:
        """Request what is due: facts, samples of runs, last lines of sessions."""
        app, view = self.app, self.view
        if view.is_due("facts", FACTS_S):
            app.work("box facts", partial(refresh_facts, app, view))
        if self.store.gpus and view.is_due("fill", FILL_S):
            app.work("gpu history", partial(fill_history, app, view))
        if view.is_due("sizes", SIZES_S):
            app.work("checkpoint sizes", partial(refresh_sizes, app, view))
        if self.store.sessions and view.is_due("lines", LIVE_S):
            app.work("last lines", partial(refresh_last_lines, app, view))

    def action_change_window(self, by: int) -> None:
        """Show a longer (+1) or a shorter (-1) time."""
        self.view.zoom(by)
        self.request_data()
        self.tick()

    def action_next_quantity(self) -> None:
        """Chart use, memory, power or temperature of the GPUs."""
        self.view.next_quantity()
        self.tick()

    def action_export(self) -> None:
        """Save what the GPUs did in the time shown as CSV, on this machine."""
        view = self.view
        table, samples = gpu_table(view.history, *view.ends(self.store))
        if samples:
            save_table(self.app, f"{self.store.box}_gpus_{view.name.replace(' ', '_')}", table, samples, "sample")
        else:
            self.app.warn(f"nothing to save: no sample of a GPU in {view.name}")

    # sessions ------------------------------------------------------------------------------------------

    async def action_attach(self) -> None:
        """Attach to the session under the cursor; detach to return here."""
        session = self.session
        if session:
            await attach_to(self.app, session)
        else:
            self.app.warn("this box has no tmux session")

    async def action_copy_attach(self) -> None:
        """Copy the command that attaches to the session under the cursor."""
        session = self.session
        if not session:
            self.app.warn("this box has no tmux session")
            return
        try:
            command = await asyncio.to_thread(attach_command, self.app.connection.box, session)
        except Exception as error:  # no OpenSSH, an alias that does not resolve, …
            self.app.show_error("cannot attach", str(error))
            return
        self.app.copy(shlex.join(command), f"the command that attaches to {session}")

    async def action_open_shell(self) -> None:
        """Open a shell on the box in a new tmux session, and attach to it."""
        try:
            session = (await self.app.request("open_shell"))["session"]
        except RemoteError as error:
            self.app.show_error("cannot open a shell", error.message, error.hint)
            return
        await attach_to(self.app, session)

    async def action_send_line(self) -> None:
        """Send a line to the session under the cursor (asks first)."""
        session = self.session
        if not session:
            self.app.held_keys.drop()
            self.app.warn("this box has no tmux session")
            return
        line = await self.app.show_dialog(LineScreen(session))
        if not line or not await self.app.show_dialog(confirm_line(self.store.box, session, line)):
            return
        try:
            await self.app.request("send_line", session=session, line=line)
        except RemoteError as error:
            self.app.show_error(f"not sent to {session}", error.message, error.hint)
        else:
            self.app.receipt(f"sent to {session}", line)

    async def action_set_up(self) -> None:
        """Install the engine of the box's checkout, or what is missing of it, in a tmux session."""
        try:
            reply = await self.app.request("set_up")
        except RemoteError as error:
            self.app.show_error("cannot set up the engine", error.message, error.hint)
            return
        started = "started" if reply["started"] else "is running"
        where = f"in tmux session {reply['session']}; {self.app.key('attach_session')} attaches"
        self.app.receipt(f"setup of the engine {started}", where)

    # panels --------------------------------------------------------------------------------------------

    def action_open_focused(self) -> None:
        """List the checkpoints that can go, from the disks; else let the panel fill the screen."""
        if isinstance(self.focused, DisksPanel) and self.maximized is None:
            self.action_list_spare()
        else:
            self.action_zoom()

    def action_list_spare(self) -> None:
        """List the checkpoints that can go, and their paths."""
        self.app.push_screen(SpareScreen(str((self.store.host or {}).get("root") or "")))

    def action_zoom(self) -> None:
        """Show the focused panel in full screen, or restore it."""
        if self.maximized is not None:
            self.minimize()
        elif isinstance(self.focused, Panel | SessionsPanel):
            self.maximize(self.focused, container=False)
        self.call_after_refresh(self.tick)

    def back(self) -> bool:
        """One step out: the full-screen panel; returns False if there is none."""
        if self.maximized is None:
            return False
        self.action_zoom()
        return True


class LineScreen(TextDialog[str]):
    """Dismissed with a line, or with None."""

    def __init__(self, session: str) -> None:
        super().__init__()
        self.heading = f"send a line to {session}"

    def compose_text(self) -> ComposeResult:
        yield Static(Content("It is typed into the session, followed by Enter."), classes="message")

    def compose_below(self) -> ComposeResult:
        yield LineInput(id="answer", placeholder="a command", compact=True, max_length=MAX_LINE)

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Continue …", id="yes", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#answer").focus()
        self.call_after_refresh(self.app.release_keys)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.chosen("yes")

    def chosen(self, button: str) -> None:
        self.dismiss(self.query_one("#answer", Input).value)


def confirm_line(box: str, session: str, line: str) -> ConfirmScreen:
    """Shows box, session and line. Dismissed with whether it is sent."""
    shown = (("box", box), ("session", session), ("line", line))
    lines = [Content.from_markup("[$text-muted]$name[/]  $text", name=f"{name:<7}", text=text) for name, text in shown]
    return ConfirmScreen("send this line?", lines, "Send")


async def refresh_facts(app: Desk, view: BoxView) -> None:
    """Request processor, memory and disks."""
    try:
        view.take_facts(await app.request("box_facts", reply_s=15.0), app.store.now())
    except RemoteError as error:
        view.ended("facts", error.message)
    app.tick_view()


async def refresh_sizes(app: Desk, view: BoxView) -> None:
    """Request the sizes of the checkpoints, as far as the box has measured them."""
    try:
        view.take_sizes(await app.request("checkpoint_sizes", reply_s=15.0))
    except RemoteError as error:
        view.ended("sizes", error.message)


async def fill_history(app: Desk, view: BoxView) -> None:
    """Request what the GPUs did, from the logs of the runs of that time."""
    store = app.store
    low, high = view.ends(store)
    skew_s = store.skew_s
    replies = []
    for run in view.runs(store):
        params = {"run": run, "low": low - skew_s, "high": high - skew_s, "columns": FILL_COLUMNS}
        try:
            replies.append(await app.request("gpu_history", reply_s=30.0, **params))
        except RemoteError:
            continue  # its samples are missing, which the chart shows
    view.history.fill(replies, skew_s)
    view.ended("fill")


async def refresh_last_lines(app: Desk, view: BoxView) -> None:
    """Request the last line of each session."""
    for session in [str(row["name"]) for row in app.store.sessions[:MAX_SESSIONS]]:
        try:
            text = str((await app.request("capture_pane", reply_s=15.0, session=session, lines=20)).get("text", ""))
        except RemoteError:
            continue  # it ended just now
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        view.lines[session] = lines[-1] if lines else ""
        view.version += 1
    view.ended("lines")
