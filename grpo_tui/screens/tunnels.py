"""The tunnels to the box: open one in the browser, copy its address, end it."""

from __future__ import annotations

import threading
import webbrowser

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from grpo_tui.model.formatting import shortened
from grpo_tui.model.tunnels import BoxTunnels, OpenTunnel
from grpo_tui.screens.dialog import Dialog

WIDTH = 96


class TunnelsScreen(Dialog[None]):
    """Ports of this machine that lead to the box."""

    def __init__(self, box: str, tunnels: BoxTunnels, selected: int = 0) -> None:
        super().__init__()
        self.heading = f"tunnels to {box}"
        self.tunnels, self._selected = tunnels, selected

    def compose_body(self) -> ComposeResult:
        yield OptionList(id="choices")
        yield Static("", id="about", classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("End", id="end", variant="warning", compact=True)
        yield Button("Copy", id="copy", compact=True)
        yield Button("Open", id="open", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.call_after_refresh(self.app.release_keys)
        self._fill(self._selected)

    def _fill(self, selected: int) -> None:
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(Option(self._line(each)) for each in self.tunnels.open)
        some = bool(self.tunnels.open)
        choices.display = some
        for name in ("end", "copy", "open"):
            self.query_one(f"#{name}").display = some
        note = "enter opens it in the browser · only this machine reaches it" if some else "no tunnel is open"
        self.query_one("#about", Static).update(Content.from_markup("[$grpo-muted]$note[/]", note=note))
        if some:
            choices.highlighted = min(selected, len(self.tunnels.open) - 1)
            choices.focus()
        else:
            self.query_one("#cancel").focus()

    def _line(self, each: OpenTunnel) -> Content:
        room = min(self.app.size.width, WIDTH) - 10
        return Content.from_markup(
            "[bold]$label[/]  [$grpo-muted]to $target on the box[/]\n  $address",
            label=shortened(each.label, room // 2), target=shortened(each.target, room // 2 - 16),
            address=shortened(each.address, room),
        )  # fmt: skip

    def on_option_list_option_selected(self) -> None:
        self.chosen("open")

    def chosen(self, button: str) -> None:
        at = self.query_one(OptionList).highlighted
        if at is None or at >= len(self.tunnels.open):
            return
        one, app = self.tunnels.open[at], self.app
        if button == "end":
            self.tunnels.end(one)
            self._fill(at)
        elif button == "copy":
            app.copy(one.address, "address")
        else:
            url = one.address if one.path else f"http://{one.address}"
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            app.receipt("opened in the browser", url)
