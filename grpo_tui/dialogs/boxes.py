"""The list of boxes, to switch to one, add, edit or remove one, and the tunnels to the shown box."""

from __future__ import annotations

import threading
import time
import webbrowser
from collections.abc import Callable, Container, Mapping
from dataclasses import Field, fields
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from grpo_tui.box.fleet import Fleet, Glance, priced_and_placed
from grpo_tui.box.formatting import money, one_line, padded, short_age, short_duration, shortened
from grpo_tui.box.link import BoxTunnels, OpenTunnel
from grpo_tui.kit.dialog import Dialog, LineInput
from grpo_tui.kit.panel import Excerpt
from remote.boxes import LOCAL_NAME, Box, box_of
from remote.transports.choice import explain

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


FRAME_WIDTH = 11
"""Of the border, the paddings and a scrollbar."""
PRICE_WIDTH = 9
AGE_WIDTH = 8
START_S = 0.1
"""Then the list is shown: ten boxes that connect would delay it."""
BEAT_S = 0.5
"""Interval at which what the boxes say is shown."""
IS_IMPLICIT = "local is this machine: it is listed without an entry in boxes.yaml"


class BoxesScreen(Dialog[tuple[str, str]]):
    """Dismissed with what to do (``use``, ``add``, ``edit``, ``remove``) and the name of a box."""

    heading = "boxes"
    keys = "enter switch · a add · e edit · d remove · esc close"
    BINDINGS: ClassVar = [
        Binding("a", "choose('add')", show=False),
        Binding("e", "choose('edit')", show=False),
        Binding("d,delete", "choose('remove')", show=False),
    ]

    def __init__(
        self, boxes: list[Box], current: str, here: Callable[[], Glance], agent: str = "", cursor: str = "",
        entries: Container[str] = (),
    ) -> None:  # fmt: skip
        """``here``: what the app knows about the current box now; ``agent``: what the doctor of the current box says
        about the agent, if there is something to do; ``entries``: names in boxes.yaml, which can be edited.
        """
        super().__init__()
        self._cursor, self._entries = cursor or current, entries
        self.boxes, self.current, self.here, self.agent = boxes, current, here, agent
        self._fleet = Fleet(boxes, current)
        self._lines: list[Content] = []
        """What is shown."""

    def _glance(self, name: str) -> Glance | None:
        return self.here() if name == self.current else self._fleet.glance(name)

    def compose_body(self) -> ComposeResult:
        self._lines = [self._line(box) for box in self.boxes]
        options = [Option(line, id=box.name) for line, box in zip(self._lines, self.boxes, strict=True)]
        yield OptionList(*options, id="choices")
        note = "runs on other boxes continue"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")
        yield Static("", id="transport", classes="message")

    def _line(self, box: Box) -> Content:
        glance = self._glance(box.name)
        mark = "[$success]●[/]" if box.name == self.current else " "
        dollars, place, state = priced_and_placed(box, time.time())
        price = f"{money(dollars)}/h" if dollars is not None else ""
        room = min(self.app.size.width, WIDTH) - FRAME_WIDTH - len("● ") - PRICE_WIDTH
        name, address = min(20, room // 3), min(40, room - room // 3 - 3)
        text, tone = _said(glance)
        if state and state not in text and not (state.startswith("? (") and state[3:-1] in text):
            text = f"{state} · {text}"
        width = room + PRICE_WIDTH - AGE_WIDTH
        return Content.from_markup(
            f"{mark} [bold]$name[/] [$grpo-muted]$address[/]  $price\n  [{tone}]$text[/][$grpo-muted]$age[/]",
            name=padded(shortened(box.name, name), name),
            address=padded(shortened(place, address), address),
            price=price,
            text=padded(shortened(one_line(text), width), width),
            age=_age(glance).rjust(AGE_WIDTH),
        )

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Add a box …", id="add", variant="primary", compact=True)

    def on_mount(self) -> None:
        choices = self.query_one(OptionList)
        names = [box.name for box in self.boxes]
        choices.highlighted = names.index(self._cursor) if self._cursor in names else 0
        choices.focus()
        self.set_timer(START_S, self._fleet.start)
        self.set_interval(BEAT_S, self._show)

    def on_unmount(self) -> None:
        self._fleet.close()

    def _show(self) -> None:
        """Show what the boxes say now."""
        choices = self.query_one(OptionList)
        for index, box in enumerate(self.boxes):
            line, shown = self._line(box), self._lines[index]
            if (line.plain, line.spans) != (shown.plain, shown.spans):
                self._lines[index] = line
                choices.replace_option_prompt_at_index(index, line)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        box = self.boxes[event.option_index]
        text = explain(box)
        if box.name == self.current and self.agent:
            text += f". The agent {self.agent}"
        self.query_one("#transport", Static).update(Content.from_markup("[$grpo-muted]$text[/]", text=text))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(("use", str(event.option.id)))

    def action_choose(self, what: str) -> None:
        at = self.query_one(OptionList).highlighted
        name = self.boxes[at].name if at is not None else ""
        if what != "add" and name not in self._entries:
            why = IS_IMPLICIT if name == LOCAL_NAME else f"{name} is not in boxes.yaml"
            self.query_one("#transport", Static).update(Content.from_markup("[$warning]▲ $why[/]", why=why))
        else:
            self.dismiss((what, name))

    def chosen(self, button: str) -> None:
        self.action_choose("add")


def _said(glance: Glance | None) -> tuple[str, str]:
    """What a box says about itself, and the tone of it."""
    if glance is None or (glance.age_s is None and not glance.problem):
        return "asking …", "$grpo-muted"
    if glance.age_s is None:
        return glance.problem, "$error"
    live = f"{len(glance.live)} live: {', '.join(glance.live)}" if glance.live else "no live run"
    idle = f", idle for {short_duration(glance.idle_s)}" if glance.idle_s is not None else ""
    gpus = f"{glance.gpus_said} GPUs free · " if glance.gpus else ""
    if problem := glance.problem or glance.gpu_problem:
        return f"{'' if glance.problem else gpus}{live} · {problem}", "$warning"
    return f"{gpus}{live}{idle}", "$success" if glance.live else "$text"


def _age(glance: Glance | None) -> str:
    """How old it is what a box says; a box whose link is up reports changes at once."""
    if glance is None or glance.age_s is None:
        return ""
    return f"{short_age(glance.age_s)} ago" if glance.age_s >= 1 else "now"


def _hint(item: Field[Any]) -> str:
    unset = item.metadata["unset"]
    return f"empty: {unset}" if unset else str(item.metadata["about"])


_FIELDS = [
    (item.name, item.metadata["label"], item.metadata.get("example", ""), _hint(item))
    for item in fields(Box)
    if "label" in item.metadata
]
"""Key, label, example and hint of each field of the form, from the table of keys."""


class AddBoxScreen(Dialog[Box]):
    """Dismissed with the box. ``save`` writes it, or raises; ``box``: the one that is edited."""

    heading, verb = "add a box", "Add and connect"

    def __init__(self, save: Callable[[Box], object], box: Box | None = None) -> None:
        super().__init__()
        self.save, self.box = save, box
        self._texts = {key: str(getattr(box, key) or "").strip() if box else "" for key, *_ in _FIELDS}
        """What the fields began with."""
        if box is not None:
            self.heading, self.verb = f"edit {box.name}", "Save"

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="body fields", can_focus=False):
            for key, label, example, hint in _FIELDS:
                with Horizontal(classes="field"):
                    yield Label(label, classes="label")
                    example = f"e.g. {example}" if example else ""
                    yield LineInput(self._texts[key], placeholder=example, id=f"box-{key}", compact=True)
                yield Label(hint, classes="under")
        yield Static("", id="field-hint")
        yield Excerpt("", id="problem")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button(self.verb, id="add", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#box-name").focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Short terminals have room for one hint, that of the focused field."""
        hint = next((hint for key, _, _, hint in _FIELDS if event.widget.id == f"box-{key}"), "")
        self.query_one("#field-hint", Static).update(Content(hint))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._add()

    def chosen(self, button: str) -> None:
        self._add()

    def _add(self) -> None:
        value = {key: self.query_one(f"#box-{key}", Input).value.strip() for key, *_ in _FIELDS}
        try:
            box = box_from_form(value, self.box, self._texts)
            self.save(box)
        except Exception as error:  # shown in the form, whatever it is
            self.query_one("#problem", Static).update(Content.from_markup("[$error]✖ $error[/]", error=str(error)))
            return
        self.dismiss(box)


def box_from_form(value: dict[str, str], base: Box | None = None, shown: Mapping[str, str] | None = None) -> Box:
    """A box from the form's values, or ``base`` with those that differ from what was shown.

    Raises ValueError that names the key.
    """
    if not value["name"]:
        raise ValueError("name: required")
    if not value["host"] and (base is None or base.host):
        raise ValueError("host: required, an address or a host alias from ~/.ssh/config")
    value = value | {"price_per_hour": value["price_per_hour"].lstrip("$")}
    if base is not None and shown is not None:
        value = {key: text for key, text in value.items() if text != shown[key]}
    return box_of(value, base)
