"""Base of the views: header, filter line, keys, sizes, and what a change of box means. A view adds its panels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import events, getters
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from grpo_train.history.query import QueryError
from grpo_tui.actions import ACTIONS
from grpo_tui.box.events import TrackedRun, tracking_of
from grpo_tui.box.store import Store
from grpo_tui.kit.bars import HeaderBar, KeyBar, StatusLine, ViewBar
from grpo_tui.kit.desk import Desk
from grpo_tui.kit.dialog import LineInput
from grpo_tui.kit.panel import StoreView


def bindings_of(view: str) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """The keys of a view, from the table of actions."""
    return [
        Binding(action.key, f"app.act('{action.id}')", action.label, id=action.id, show=False)
        for action in ACTIONS
        if action.is_in(view)
    ]


class ViewScreen(Screen[None]):
    """One view of the selection. It is made once; while it is shown, ``tick`` is called at the app's pulse."""

    NAME: ClassVar[str]
    """As in the table of actions: the scope of its actions."""
    MAIN: ClassVar[str]
    """Selector of the panel that has the keys at first."""
    FILTER_HINT: ClassVar[str] = ""
    """What the filter line takes; "" = the view has none."""

    GOES_TO_STEPS: ClassVar[bool] = False
    """Whether it has a line that takes the number of a step."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (104, "-medium"), (170, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall"), (50, "-high")]  # noqa: RUF012
    ALLOW_IN_MAXIMIZED_VIEW = "HeaderBar,ViewBar,KeyBar,StatusLine"

    def __init__(self, desk: Desk) -> None:
        super().__init__(classes="view")
        self.store, self.actions, self.readonly = desk.store, desk.actions, desk.options.readonly
        self._recomposing = False

    # what a view defines -------------------------------------------------------------------------------

    def panels(self) -> Iterable[Widget]:
        """The widgets between the header and the keys."""
        raise NotImplementedError

    def update(self) -> None:
        """Choose what is shown, before the panels are updated."""

    def request_data(self) -> None:
        """Send the requests that are due, as workers of the app."""

    def box_changed(self) -> None:
        """Forget what belongs to the box shown before; ``store`` is the new one's."""

    def back(self) -> bool:
        """Take one step out; returns False if the view is at its outermost."""
        return False

    def go_to_step(self, step: int) -> None:
        """Show a step, or the nearest one."""

    @property
    def filter(self) -> str:
        """The text of the filter."""
        return ""

    def set_filter(self, text: str) -> None:
        """Apply a filter, as it is typed."""

    def filter_closed(self) -> None:
        """The filter line was closed, after ``set_filter``."""

    # what all views do ---------------------------------------------------------------------------------

    app = getters.app(Desk)

    def compose(self) -> ComposeResult:
        yield HeaderBar(self.store, self.readonly, id="header")
        yield from self.panels()
        if self.FILTER_HINT:
            yield LineInput(id="filter", placeholder=self.FILTER_HINT, compact=True)
            yield Static(id="mistake")
        if self.GOES_TO_STEPS:
            yield LineInput(id="go-to", placeholder="step; enter goes there", restrict="[0-9,_ ]*", compact=True)
        yield KeyBar(self.store, self.actions, self.readonly, view=self.NAME, id="keys")
        yield ViewBar(self.store, self.actions, view=self.NAME, id="views")
        yield StatusLine(self.store)

    async def on_event(self, event: events.Event) -> None:
        if not self.app.holds(event):
            await super().on_event(event)

    def on_mount(self) -> None:
        if main := self.query(self.MAIN):  # none where the app ended in between
            main.first().focus()
            self.tick()

    def on_screen_resume(self) -> None:
        self.tick()

    async def set_store(self, store: Store) -> None:
        """Show another box. The screen is kept: Textual's Input needs one at all times."""
        if self.maximized is not None:
            self.minimize()
        self.store = store
        self.box_changed()
        self._recomposing = True
        try:
            await self.recompose()
        finally:
            self._recomposing = False
        self.tick()

    @property
    def width_class(self) -> str:
        """``-narrow``, ``-medium`` or ``-wide``, by the width of the terminal."""
        return next((name for _, name in self.HORIZONTAL_BREAKPOINTS if self.has_class(name)), "-medium")

    def tick(self) -> None:
        """Update the view from the store. One that is not composed yet, or is being removed, does nothing."""
        if self._recomposing or not self.is_mounted or self.query_one_optional("#keys") is None:
            return
        self.update()
        for widget in self.walk_children():
            if isinstance(widget, StoreView):
                widget.tick()

    def action_zoom(self) -> None:
        """Show the focused panel in full screen, or restore it."""
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None and self.focused.has_class("panel"):
            self.maximize(self.focused, container=False)
        self.call_after_refresh(self.tick)

    # step ----------------------------------------------------------------------------------------------

    @property
    def is_asking(self) -> bool:
        """Whether the line that takes a step is shown."""
        return self.GOES_TO_STEPS and self.query_one("#go-to", Input).display

    def action_ask_for_step(self) -> None:
        """Go to a step by its number."""
        line = self.query_one("#go-to", Input)
        line.display, line.value = True, ""
        line.focus()

    def close_go_to(self) -> None:
        """Hide the line that takes a step."""
        self.query_one("#go-to", Input).display = False
        self.query_one(self.MAIN).focus()

    # tracking ------------------------------------------------------------------------------------------

    def tracking(self) -> TrackedRun | None:
        """How the run that the keys are for is tracked by W&B; None without a run."""
        store = self.store
        return tracking_of(store.selected or "", store.shown.get("events") or (), store.config.get("tracking.wandb"))

    def action_show_tracking(self) -> None:
        """Show whether the run is in W&B, its page, and what failed last."""
        from grpo_tui.dialogs.runs import TrackingScreen

        if (tracking := self.tracking()) is None:
            self.app.warn("no run under the cursor")
        else:
            self.app.push_screen(TrackingScreen(tracking))

    # filter --------------------------------------------------------------------------------------------

    def action_show_filter(self) -> None:
        """Show the filter line and focus it."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.value = self.filter
        line.focus()

    def show_mistake(self, mistake: QueryError | None) -> None:
        """Point to a mistake in the filter, or remove the pointer."""
        line, below = self.query_one("#filter", Input), self.query_one("#mistake", Static)
        below.display = mistake is not None and line.display
        if mistake is not None:
            column = max(0, mistake.column - round(line.scroll_offset.x))
            behind, before = self.size.width - column - len("^ "), column - len(" ")
            message = Content(mistake.message)
            if message.cell_length <= behind or behind >= before:
                text = Content(" " * column + "^ ") + message.truncate(max(1, behind), ellipsis=True)
            else:
                message = message.truncate(max(1, before), ellipsis=True)
                text = Content(" " * (before - message.cell_length)) + message + Content(" ^")
            below.update(text.stylize("$error"))

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self.set_filter(event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter" and not self.query_one("#mistake").display:
            self._close_filter()
        elif event.input.id == "go-to":
            digits = "".join(character for character in event.value if character.isdecimal())[:15]
            self.close_go_to()
            if digits:
                self.go_to_step(int(digits))

    def on_key(self, event: events.Key) -> None:
        if self.FILTER_HINT and event.key == "escape" and (line := self.query_one("#filter", Input)).has_focus:
            event.stop()
            event.prevent_default()
            line.value = ""
            self.set_filter("")
            self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#mistake").display = False
        self.query_one(self.MAIN).focus()
        self.filter_closed()
