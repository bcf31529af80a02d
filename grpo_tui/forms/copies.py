"""The forms of copies: what is copied from the box, and to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar, cast

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Button, Input, Select, Static

from grpo_tui import downloads
from grpo_tui.forms.form import FieldError, field
from grpo_tui.model.copies import Get, Put
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.excerpt import Excerpt
from grpo_tui.widgets.line_input import LineInput

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
        folder = LineInput(str(downloads.folder()), id="folder", compact=True, suggester=PathSuggester())
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
