"""What forbids the termination of a box: everything that would be lost with it, and the commands that end that."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from grpo_train.run_dir.display import duration
from grpo_tui.background import refresh_termination
from grpo_tui.model.formatting import one_line, padded, shortened
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.waiting import WaitingLine


class TerminationScreen(Dialog[None]):
    """Asks the box now; ``y`` copies the command under the cursor. Nothing is ended from here."""

    heading = "safe to terminate?"
    BINDINGS: ClassVar = [Binding("y", "copy", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def compose_body(self) -> ComposeResult:
        yield WaitingLine(id="about")
        yield OptionList(id="choices")
        yield Static("", id="ends-it", classes="command")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy the command", id="copy", variant="primary", compact=True)

    def on_mount(self) -> None:
        self._show_rows()
        self.app.work("safe to terminate", self._request)
        self.query_one("#cancel").focus()

    async def _request(self) -> None:
        about, termination = self.query_one(WaitingLine), self.app.termination
        await about.wait(refresh_termination(self.app, now=True))
        if not self.is_mounted:
            return
        if (reply := termination.reply) is None:
            why = one_line(termination.asking.problem or "not connected to the box")
            text = Content.from_markup("[$error]■[/] [bold]keep the box[/]: not known: $why", why=why)
        else:
            self.rows, text = reply["obstacles"], _verdict(reply)
        about.update(text)
        self._show_rows()

    def _show_rows(self) -> None:
        choices = self.query_one(OptionList)
        choices.display = bool(self.rows)
        choices.add_options(Option(self._line(row)) for row in self.rows)
        if self.rows:
            choices.highlighted = 0
            choices.focus()
        self._show_command()

    def _line(self, row: dict[str, Any]) -> Content:
        room = min(self.app.size.width, 96) - 8
        name = max(12, room * 2 // 5)
        reason = one_line(str(row.get("reason") or row.get("unreadable") or ""))
        line = Content.from_markup(
            "$name  [$grpo-muted]$reason[/]", name=padded(shortened(str(row["name"]), name), name), reason=reason
        )
        return line.truncate(room, ellipsis=True)

    @property
    def command(self) -> str:
        """What ends the obstacle under the cursor; "" without one."""
        at = self.query_one(OptionList).highlighted
        return str(self.rows[at].get("command") or "") if at is not None and at < len(self.rows) else ""

    def _show_command(self) -> None:
        shown = self.query_one("#ends-it", Static)
        shown.display = self.query_one("#copy").display = bool(self.command)
        shown.border_title = "on the box"
        shown.update(Content(self.command))

    def on_option_list_option_highlighted(self) -> None:
        self._show_command()

    def on_option_list_option_selected(self) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        """Copy the command that ends the obstacle under the cursor."""
        if self.command:
            self.app.copy(self.command, "command for the box")

    def chosen(self, button: str) -> None:
        self.action_copy()


def _verdict(reply: dict[str, Any]) -> Content:
    if not reply["safe"]:
        count = int(reply["count"])
        more = f"; the first {len(reply['obstacles']):,} are listed" if count > len(reply["obstacles"]) else ""
        text = f"{count:,} thing{'s' if count != 1 else ''} would be lost or cut off{more}"
        return Content.from_markup("[$error]■[/] [bold]keep the box[/]: $text", text=text)
    verdict = Content.from_markup("[$success]■[/] [bold]safe to terminate[/]")
    if reply["obstacles"]:
        return verdict + Content(": kept on the mount only; what is listed has no second copy")
    return verdict + Content(f": every run is backed up and was read back (checked {_age(reply)})")


def _age(reply: dict[str, Any]) -> str:
    age = float(reply["age_s"])
    return "just now" if age < 60 else f"{duration(age)} ago"
