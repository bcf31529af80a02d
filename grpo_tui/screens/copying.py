"""A copy at work: how far it is, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, ProgressBar, Static

from grpo_tui.model.formatting import byte_size, counted
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.excerpt import Excerpt

if TYPE_CHECKING:
    from grpo_tui.model.copies import BoxCopy

LEFT_OUT_SHOWN = 3


class CopyScreen(Dialog[bool]):
    """Hidden (None), or dismissed with whether to copy again."""

    def __init__(self, copy: BoxCopy) -> None:
        super().__init__()
        self.copy = copy
        self.heading = f"copy of {copy.request.title()}"

    def compose_body(self) -> ComposeResult:
        yield Static(Content(self.copy.request.between(self.copy.box.name)), classes="message")
        yield ProgressBar(total=1.0, show_eta=False, id="bar")
        yield Static("", id="progress-line")
        yield Excerpt("", id="problem")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Hide", id="cancel", compact=True)
        yield Button("Stop", id="stop", variant="warning", compact=True)
        yield Button("Copy again", id="again", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#again").display = False
        self.query_one("#cancel").focus()
        self.call_after_refresh(self.app.release_keys)
        self._timer = self.set_interval(0.2, self._show)
        self._show()

    def chosen(self, button: str) -> None:
        if button == "again":
            self.dismiss(True)
        else:
            self.copy.stop()
            self._show()

    def _show(self) -> None:
        copy = self.copy
        self.query_one(ProgressBar).update(progress=1.0 if copy.copied is not None else copy.progress.share)
        line = Content.from_markup("[$grpo-muted]$text[/]", text=copy.note or copy.progress.line())
        if copy.over:
            self._timer.stop()
            line = self._end()
            stop, close, again = (self.query_one(f"#{id}", Button) for id in ("stop", "cancel", "again"))
            stop.display, again.display = False, copy.copied is None
            close.label = "Close"
            (again if copy.copied is None else close).focus()
        elif copy.was_stopped:
            line = Content.from_markup("[$grpo-muted]stopping …[/]")
        self.query_one("#progress-line", Static).update(line)

    def _end(self) -> Content:
        from remote.copying import not_copied

        copied = self.copy.copied
        if copied is None:
            problem = "stopped; what has arrived is kept" if self.copy.was_stopped else self.copy.problem
            tone = "$warning" if self.copy.was_stopped else "$error"
            self.query_one("#problem", Static).update(Content.from_markup(f"[{tone}]✖ $text[/]", text=problem))
            return Content()
        lines = [Content(path) for path in copied.paths]
        lines += [
            Content.from_markup("[$warning]left out:[/] $what", what=path if self.copy.synced else not_copied(path))
            for path in copied.left_out[:LEFT_OUT_SHOWN]
        ]
        if (more := len(copied.left_out) - LEFT_OUT_SHOWN) > 0:
            lines.append(Content.from_markup("[$grpo-muted]… and $count more[/]", count=more))
        if (synced := self.copy.synced) is not None:
            lines.append(Content(f"{synced.code} {synced.subject}".rstrip()))
            if synced.needs_setup:
                lines.append(Content.from_markup("[$warning]its engine is not set up:[/] S in the box view"))
        self.query_one("#problem", Static).update(Content("\n").join(lines))
        if synced is not None:
            return Content.from_markup("[$success]✔[/] the next launch trains with it")
        there = copied.size - copied.travelled
        already = f", {byte_size(there)} of them were there" if there else ""
        text = f"{counted(copied.files, 'file')}, {byte_size(copied.size)}{already}; every file hashed on both machines"
        return Content.from_markup("[$success]✔[/] $text", text=text)
