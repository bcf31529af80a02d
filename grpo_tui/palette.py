"""The command palette: the actions of the view, what has no key, and runs, metrics, steps, files and boxes to go to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from textual import getters, on
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.types import IgnoreReturnCallbackType
from textual.widgets import Input

from grpo_tui import files
from grpo_tui.actions import key_label, readonly
from grpo_tui.background import refresh_log_files
from grpo_tui.box.formatting import byte_size
from grpo_tui.commands.boxes import list_tunnels
from grpo_tui.commands.copies import sync
from grpo_tui.kit import save
from grpo_tui.kit.desk import Desk, GoToStep, OpenFile, SelectRun, ShowMetric
from remote.base import BoxesError
from remote.boxes import load_boxes
from remote.protocol.rows import UNREADABLE

CLOSED_AFTER_S = 0.2
"""The palette is off the screen then."""
MOST = 20
"""Finds of each kind: a box may list 10,000 runs."""
_STEP = re.compile(r"(?:step )?\s*(\d[\d,]*)")


class Command(NamedTuple):
    """What the palette lists and runs."""

    title: str
    """Its name, then what it does: the palette searches titles alone."""
    about: str
    callback: IgnoreReturnCallbackType
    key: str = ""


class CommandsPalette(CommandPalette):
    """As Textual's; enter after the whole name of a command runs it, without a choice: ``:messages``."""

    app = getters.app(Desk)

    def on_mount(self) -> None:
        # by the app: a key that a screen sends goes no further than to that screen, whose bindings do not have enter
        self.call_after_refresh(self.app.call_later, self.app.release_keys)

    @on(Input.Submitted)
    def run_named(self, event: Input.Submitted) -> None:
        desk = self.app
        name = event.value.strip().lower()
        found = next((one for one in commands(desk) if one.title.partition(":")[0] == name), None)
        if found is not None:
            event.stop()
            event.prevent_default()
            self.dismiss()
            desk.call_later(found.callback)


def commands(app: Desk) -> Iterator[Command]:
    """The commands that can be chosen now, each with its key, or with why it is not available."""
    situation = app.situation()
    for action in app.actions:
        if action.id == "palette" or not action.is_in(app.view):
            continue
        reason = action.reason(situation)
        title, about = f"{action.label}: {app.help_of(action)}", f"not available: {reason}" if reason else ""
        run = partial(_act, app, action.id)
        yield Command(title, about, run, key_label(action.keys[0]))
    title = "messages: Show what was said in this session"
    yield Command(title, "all messages of the line at the bottom, in full", app.action_show_messages)
    tunnels = partial(app.work, "tunnels", partial(list_tunnels, app))
    yield Command("tunnels: List the tunnels to the box", "open, copy or end one", tunnels)
    if not (why := readonly(situation)):
        why = "the next launch trains with it; running jobs keep theirs"
        bring = partial(app.work, "sync", partial(sync, app))
        yield Command("sync: Bring the code of this machine's checkout to the box", why, bring)
    title = "report: Save a report of the run, or of the marked runs, as one HTML file"
    yield Command(title, "made by the box, kept in the downloads folder", partial(save.start_report, app))
    yield Command("theme", "Choose the color theme", app.action_change_theme)
    other, why = ("braille", "finer") if app.preferences.in_blocks else ("blocks", "for a font without braille")
    yield Command(f"draw charts in {other}", why, partial(_draw_charts_in, app, other))
    yield Command("screenshot", "Save a screenshot (SVG)", partial(_save_screenshot, app))


def _act(app: Desk, name: str) -> None:
    app.run_worker(app.action_act(name))


def _draw_charts_in(app: Desk, characters: str) -> None:
    app.preferences.charts = characters
    app.tick()


def _save_screenshot(app: Desk) -> None:
    """Save to the downloads folder, or the home directory without one."""
    app.set_timer(CLOSED_AFTER_S, lambda: app.deliver_screenshot(path=str(files.folder())))


FRAME = 6
"""Cells of a line of the palette beside its text: paddings and the scrollbar."""


def entry(app: Desk, name: Content, about: str, key: str = "") -> Content:
    """A line of the palette: a name, and at the right what it is and its key, which is never cut."""
    room = max(20, app.size.width - FRAME)
    ending = Content.styled(f"  {key}", "bold $accent") if key else Content()
    most = max(room // 2, room - name.cell_length - 2) - ending.cell_length
    right = Content.styled(about, "$text-muted").truncate(max(0, most), ellipsis=True) + ending
    left = name.truncate(max(0, room - right.cell_length - 2), ellipsis=True)
    return left + Content(" " * (room - left.cell_length - right.cell_length)) + right


class Commands(Provider):
    """Every command on one line, its key at the right."""

    @property
    def desk(self) -> Desk:
        assert isinstance(self.app, Desk)
        return self.app

    async def discover(self) -> Hits:
        for command in sorted(commands(self.desk), key=lambda command: command.title):
            line = entry(self.desk, Content(command.title), command.about, command.key)
            yield DiscoveryHit(line, command.callback, text=command.title)

    async def search(self, query: str) -> Hits:
        matcher, words, known = self.matcher(query), query.lower().split(), [*commands(self.desk)]
        # letters that are scattered over a title match nearly every title: only where no title has the words
        found = [one for one in known if all(word in one.title.lower() for word in words)]
        for title, about, callback, key in found or known:
            if (score := matcher.match(title)) > 0:
                yield Hit(score, entry(self.desk, matcher.highlight(title), about, key), callback, text=title)


class Find(NamedTuple):
    """Something to go to."""

    name: str
    help: str
    go: IgnoreReturnCallbackType


class Finder(Provider):
    """Finds by parts of the name, in any order."""

    @property
    def desk(self) -> Desk:
        assert isinstance(self.app, Desk)
        return self.app

    async def startup(self) -> None:
        """Read boxes.yaml once for each palette."""
        try:
            boxes = await asyncio.to_thread(load_boxes, self.desk.options.boxes_file)
        except BoxesError:
            boxes = []  # the list of boxes says why
        self._request_files()
        current = self.desk.connection.box.name
        self._boxes = [box for box in boxes if box.name != current]

    async def search(self, query: str) -> Hits:
        words, matcher = query.lower().split(), self.matcher(query)
        for finds in (self._steps(query), self._runs(), self._metrics(), self._files(), self._other_boxes()):
            found = 0
            for find in finds:
                if all(word in find.name.lower() for word in words) or find.name.startswith("step "):
                    score = max(matcher.match(find.name), 0.5)
                    yield Hit(score, entry(self.desk, Content(find.name), find.help), find.go, text=find.name)
                    found += 1
                    if found == MOST:
                        break

    def _steps(self, query: str) -> Iterator[Find]:
        match = _STEP.fullmatch(query.strip())
        if match and self.desk.store.run is not None:
            step = int(match[1].replace(",", "")[:15] or 0)
            where = "its completions" if self.desk.view == "rollouts" else "the charts at this step"
            yield Find(f"step {step:,}", where, partial(self.desk.post_message, GoToStep(step)))

    def _runs(self) -> Iterator[Find]:
        for row in self.desk.store.runs or ():
            yield Find(f"run {row.name}", row.shown_state, partial(go_to_run, self.desk, row.name))

    def _metrics(self) -> Iterator[Find]:
        for row in self.desk.store.metrics.rows:
            name = str(row["name"])
            yield Find(f"metric {name}", "its chart", partial(self.desk.post_message, ShowMetric(name)))

    def _request_files(self) -> None:
        """Request the files of the run; they are found as soon as they are known."""
        app, listing = self.desk, self.desk.store.log_files
        is_live = app.store.run is not None and app.store.run.is_live
        if listing is not None and app.store.connected and listing.due(is_live):
            app.work("log files", partial(refresh_log_files, app, listing))

    def _files(self) -> Iterator[Find]:
        listing = self.desk.store.log_files
        for file in listing.files if listing is not None else ():
            if UNREADABLE not in file:
                group, size = file.get("group", "logs"), byte_size(file.get("size") or 0)
                where = f"{size}, of the run" if group == "logs" else f"{size}, of {group}"
                go = partial(self.desk.post_message, OpenFile(file["path"]))
                yield Find(f"file {file.get('name', file['path'])}", where, go)

    def _other_boxes(self) -> Iterator[Find]:
        for box in self._boxes:
            go = partial(self.desk.work, "action boxes", partial(self.desk.use_box, box))
            yield Find(f"box {box.name}", box.address(), go)


def go_to_run(app: Desk, name: str) -> None:
    """Select a run; the view stays."""
    app.runs.set_filter("")
    app.post_message(SelectRun(name))
