"""Copies between this machine and the box: the forms, a copy at work, and how it ended."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Button, Input, ProgressBar, Select, Static

from grpo_tui import files
from grpo_tui.box.copies import BoxCopy, Get, Put, Sync
from grpo_tui.box.formatting import byte_size, counted, one_line
from grpo_tui.dialogs.form import FieldError, field
from grpo_tui.kit.dialog import ConfirmDialog, Dialog, LineInput
from grpo_tui.kit.panel import Excerpt
from remote.boxes import Box

if TYPE_CHECKING:
    from textual.screen import Screen

    from grpo_tui.kit.desk import Desk
    from remote.code import Checkout
    from remote.events import HostKeyAsked, QuestionAsked

LOOK_S = 0.2
"""Interval at which a copy that waits for an answer looks whether it was stopped."""


def start_copy(app: Desk, box: Box, request: Get | Put | Sync) -> BoxCopy:
    """Start a copy. Another one *must not* be at work."""
    copy = app.last_copy = BoxCopy(box, request)
    app.work("copy", partial(_run, app, copy))
    return copy


async def _run(app: Desk, copy: BoxCopy) -> None:
    try:
        await asyncio.to_thread(
            copy.run, partial(_accept, app, copy), partial(_answer, app, copy), app.options.readonly
        )
    except asyncio.CancelledError:  # the app exits
        copy.stop()
        raise
    shown = app.screen
    if isinstance(shown, CopyScreen) and shown.copy is copy:
        return  # it says how the copy ended
    title = copy.request.title()
    if copy.copied is not None:
        what = f"{title} {copy.synced.code}" if copy.synced else f"{title}, {byte_size(copy.copied.size)}"
        left_out = f"; {len(copy.copied.left_out)} left out" if copy.copied.left_out else ""
        app.receipt(f"✔ copied: {what}{left_out}", copy.copied.paths[-1])
    elif copy.problem and not copy.was_stopped:
        app.say(copy.problem, f"✖ not copied: {title}", "error")


# questions, on the copy's thread -------------------------------------------------------------------------


def _accept(app: Desk, copy: BoxCopy, offered: HostKeyAsked) -> bool:
    from grpo_tui.kit.dialog import HostKeyScreen

    return bool(_wait_for(app, copy, HostKeyScreen(offered.host, offered.key_type, offered.fingerprint)))


def _answer(app: Desk, copy: BoxCopy, question: QuestionAsked) -> str | None:
    from grpo_tui.kit.dialog import QuestionScreen

    if question.kind == "touch":
        app.call_from_thread(app.receipt, f"copy: log in to {copy.box.name}", question.text)
        return None
    answer = _wait_for(app, copy, QuestionScreen(copy.box.name, question))
    return None if answer is None else str(answer)


def _wait_for(app: Desk, copy: BoxCopy, dialog: Screen[Any]) -> Any:
    answer: Future[Any] = Future()
    app.call_from_thread(app.push_screen, dialog, answer.set_result)
    while not copy.stopped.is_set():
        try:
            return answer.result(LOOK_S)
        except NotYet:
            continue
    return None


SHOWN = 12


class UncommittedScreen(ConfirmDialog):
    """The files that are not as committed. Cancel has the focus."""

    heading = "changes that are not committed"
    TONE = "-warning"

    def __init__(self, checkout: Checkout, box: str) -> None:
        super().__init__()
        self.checkout, self.box = checkout, box

    def compose_text(self) -> ComposeResult:
        changes = self.checkout.changes
        more = len(changes) - SHOWN
        head = f"{self.checkout.folder} is at {self.checkout.commit[:10]} with changes:"
        lines = [Content(head), Content(), *(Content(one_line(row)) for row in changes[:SHOWN])]
        if more > 0:
            lines.append(Content.from_markup("[$grpo-muted]… and $count more[/]", count=f"{more:,}"))
        yield Static(Content("\n").join(lines), classes="message")
        text = f"They go to {self.box} as a patch, which each run that trains with them keeps."
        yield Static(Content.from_markup("[$grpo-muted]$text[/]", text=text), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Sync with the changes", id="yes", variant="warning", compact=True)


R = TypeVar("R", Get, Put)


class PathSuggester(Suggester):
    """Completes paths of this machine, as a shell does."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        folder, _, begun = value.rpartition("/")
        try:
            with os.scandir(Path(folder + "/").expanduser()) as found:
                fitting = [each for each in found if each.name.startswith(begun) and begun and each.name != begun]
                first = min(fitting, key=lambda each: each.name, default=None)
                return None if first is None else f"{folder}/{first.name}{'/' if first.is_dir() else ''}"
        except OSError:
            return None


class _CopyForm(Dialog[R], Generic[R]):
    """Dismissed with a request."""

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="body fields", can_focus=False):
            yield from self.compose_fields()
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=self.note()), classes="message")
        yield Excerpt("", id="problem")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Copy", id="go", variant="primary", compact=True)

    def compose_fields(self) -> ComposeResult:
        """The fields of the form."""
        raise NotImplementedError

    def note(self) -> str:
        """What a person should know beforehand."""
        raise NotImplementedError

    def build_request(self) -> R:
        """The request from the current fields. Raises FieldError."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.call_after_refresh(self.app.release_keys)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.chosen("go")

    def on_input_changed(self) -> None:
        self.query_one("#problem", Static).update("")

    def chosen(self, button: str) -> None:
        try:
            request = self.build_request()
        except FieldError as error:
            self.query_one("#problem", Static).update(Content.from_markup("[$error]✖ $error[/]", error=str(error)))
            return
        self.dismiss(request)

    def path(self, field: str, label: str) -> Path:
        """A path of this machine. Raises FieldError for an empty field."""
        if not (text := self.query_one(f"#{field}", Input).value.strip()):
            raise FieldError(f"{label}: enter a path on this machine")
        return Path(os.path.abspath(Path(text).expanduser()))


class GetForm(_CopyForm[Get]):
    """What of a run is copied to this machine, and where."""

    def __init__(self, run: str, steps: list[int]) -> None:
        """``steps``: of its complete checkpoints."""
        super().__init__()
        self.heading = f"copy {run} to this machine"
        self.run_name, self.steps = run, steps

    def compose_fields(self) -> ComposeResult:
        run = self.run_name
        choices = [(f"weights of step {step}", (f"{run}:{step}", "none")) for step in self.steps[::-1]]
        wholes = [("run with all its checkpoints", "all")] if len(self.steps) > 1 else []
        wholes = [("run with its latest checkpoint", "latest"), *wholes] if self.steps else []
        wholes.append(("run without checkpoints: logs, evaluations, configuration", "none"))
        choices += [(text, (run, steps)) for text, steps in wholes]
        yield from field("what", Select(choices, id="what", compact=True, value=choices[0][1], allow_blank=False))
        folder = LineInput(str(files.folder()), id="folder", compact=True, suggester=PathSuggester())
        yield from field("into folder", folder)

    def note(self) -> str:
        return "An interrupted copy continues when it is requested again. Nothing is overwritten."

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#go").focus()

    def build_request(self) -> Get:
        what, steps = cast("tuple[str, str]", self.query_one("#what", Select).value)
        folder = self.path("folder", "into folder")
        if folder.exists() and not folder.is_dir():
            raise FieldError(f"into folder: {folder} is not a folder")
        return Get(what, folder, steps)


class PutForm(_CopyForm[Put]):
    """What is copied to the box, and where."""

    def __init__(self, box: str) -> None:
        super().__init__()
        self.heading = f"copy to {box}"

    def compose_fields(self) -> ComposeResult:
        source = LineInput(id="source", placeholder="~/models/start", compact=True, suggester=PathSuggester())
        yield from field("from here", source)
        yield from field("to", LineInput(id="to", placeholder="checkpoints/NAME", compact=True))

    def note(self) -> str:
        return "The second path is below the box's root. Nothing is overwritten; an interrupted copy continues."

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#source").focus()

    def build_request(self) -> Put:
        source = self.path("source", "from here")
        if not source.exists():
            raise FieldError(f"from here: {source} does not exist")
        return Put(source, self.query_one("#to", Input).value.strip() or f"checkpoints/{source.name}")


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
