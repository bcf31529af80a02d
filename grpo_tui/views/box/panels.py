"""Panels of the box view: sessions, disks and memory, the doctor, checkpoints that nothing needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from grpo_train.run_dir.display import duration
from grpo_tui.box.asking import ENGINE_S
from grpo_tui.box.backups import SpareRun, spare_runs
from grpo_tui.box.formatting import Sized, bar, byte_size, counted, one_line, padded, percent, short_age, shortened
from grpo_tui.box.store import Store, clock_check
from grpo_tui.kit.dialog import Dialog
from grpo_tui.kit.lists import ListPanel, row_text
from grpo_tui.kit.panel import Panel, WaitingLine
from grpo_tui.views.box.charts import facts_age, facts_missing
from grpo_tui.views.box.model import BoxView, state_of, what_of
from remote.protocol.rows import UNREADABLE

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

LISTED = 500


class SpareScreen(Dialog[None]):
    """Lists them; ``y`` copies the paths of those of the run under the cursor. Nothing is removed from here."""

    heading = "checkpoints that can go"
    BINDINGS: ClassVar = [Binding("y", "copy", show=False)]

    def __init__(self, root: str) -> None:
        super().__init__()
        self.root = root
        self.runs: list[SpareRun] = []

    def compose_body(self) -> ComposeResult:
        yield WaitingLine(id="about")
        yield OptionList(id="choices")
        yield Static("", id="spare-paths", classes="command")
        note = "kept: the last, the best evaluated, milestones, and what an evaluation or a run uses · y or enter: copy"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy the paths", id="copy", variant="primary", compact=True)

    def on_mount(self) -> None:
        self._show_found(False)
        self.app.work("spare checkpoints", partial(self._request, self.app))
        self.query_one("#cancel").focus()

    def _show_found(self, found: bool) -> None:
        for name in ("#choices", "#spare-paths", "#copy"):
            self.query_one(name).display = found

    async def _request(self, app: Desk) -> None:
        asked = app.request("spare_checkpoints", reply_s=ENGINE_S)
        reply = await self.query_one(WaitingLine).wait(asked, failed="not listed: ")
        if reply is not None and self.is_mounted:
            self._fill(reply)

    def _fill(self, reply: dict[str, Any]) -> None:
        self.runs = spare_runs(reply["spare"])
        count, size = sum(len(run.steps) for run in self.runs), sum(run.size for run in self.runs)
        if self.runs:
            text = Content.from_markup(
                "[bold]$size[/] in $count checkpoints of $runs",
                size=byte_size(size), count=f"{count:,}",
                runs=f"{len(self.runs):,} runs" if len(self.runs) > 1 else "one run",
            )  # fmt: skip
        else:
            text = Content("no checkpoint can go: each is the last, the best evaluated, a milestone or in use")
        if more := int(reply["more"]):
            text += Content.from_markup("[$warning]; $more more are not listed[/]", more=f"{more:,}")
        for problem in reply["problems"][:3]:
            text += Content.from_markup("\n[$warning]▲ $problem[/]", problem=one_line(problem))
        self.query_one(WaitingLine).update(text)
        self._show_found(bool(self.runs))
        if self.runs:
            choices = self.query_one(OptionList)
            choices.add_options(Option(self._line(run)) for run in self.runs[:LISTED])
            choices.highlighted = 0
            choices.focus()

    def _line(self, run: SpareRun) -> Content:
        room = min(self.app.size.width, 96) - 8
        name = max(12, room * 2 // 5)
        return Content.from_markup(
            "$name  [bold]$size[/]  [$grpo-muted]$steps[/]",
            name=padded(shortened(run.name, name), name), size=f"{byte_size(run.size):>6}",
            steps=f"steps {run.ranges()}",
        )  # fmt: skip

    @property
    def current(self) -> SpareRun | None:
        at = self.query_one(OptionList).highlighted
        return self.runs[at] if at is not None and at < len(self.runs) else None

    def on_option_list_option_highlighted(self) -> None:
        if (run := self.current) is not None:
            paths = self.query_one("#spare-paths", Static)
            paths.border_title = "on the box"
            paths.update(Content(run.paths(self.root)))

    def on_option_list_option_selected(self) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        """Copy the paths of the checkpoints of the run under the cursor."""
        if (run := self.current) is not None:
            self.app.copy(run.paths(self.root), f"paths of {len(run.steps)} checkpoints")

    def chosen(self, button: str) -> None:
        self.action_copy()


FULL = 0.95
DAY_S = 86_400
NOT_BAR = 19
"""Cells of a disk's line beside its figures and its bar: a short name, its share, gaps."""
COLUMNS = (
    Sized("what", 14, is_left=True),
    Sized("state", 16, is_left=True, gap=0),
    Sized("started", 17, is_left=True, gap=0),
    Sized("line", 0, gap=0),
)
"""Of a session, after its name."""


class DisksPanel(Panel):
    """How full the file systems are, and how fast the one of the runs fills."""

    def __init__(self, store: Store, view: Callable[[], BoxView], *, id: str) -> None:
        super().__init__(store, id=id)
        self._view = view

    def state(self) -> object:
        return (self._view().version, self.store.connected, self.size, self.app.theme)

    def refresh_titles(self) -> None:
        hint = Content.from_markup("[$text-muted]$key lists what can go[/]  ", key=self.key("spare"))
        sizes = self._view().sizes
        has_some = sizes is not None and sizes["checkpoints"]
        age = facts_age(self._view(), self.store)
        self.set_titles("disk", hint + age if has_some and self.size.width >= 40 else age)

    def render(self) -> Content:
        view, width = self._view(), self.size.width
        if view.facts is None:
            return facts_missing(view, self.store)
        lines: list[Content] = []
        for disk in view.facts["disks"]:
            if reason := disk.get(UNREADABLE):
                lines.append(Content.from_markup("[$warning]unreadable: $reason[/]", reason=one_line(reason)))
                continue
            used, total = disk.get("used", 0.0), disk.get("total", 0.0)
            share = used / total if total else 0.0
            figures = f"{byte_size(used)} of {byte_size(total)} used"
            room = min(30, width // 3, width - len(figures) - NOT_BAR)
            room = room if room >= 4 else 0
            name = shortened(disk["path"], max(6, width - room - len(figures) - 11))
            filled, rest = bar(share, room)
            tone = "$error" if share >= FULL else "$secondary"
            lines.append(
                Content.from_markup(
                    f"$name  $figures  [{tone} on $grpo-track]{filled}[/][on $grpo-track]{rest}[/] $share",
                    name=name, figures=figures, share=percent(share) + (" ▲" if share >= FULL else ""),
                )
            )  # fmt: skip
            if pace := view.history.pace(disk["path"]):
                lines.append(self._pace(pace, total - used))
        lines += self._checkpoints(view, width, self.size.height - len(lines))
        return Content("\n").join([line.truncate(max(1, width), ellipsis=True) for line in lines])

    def _checkpoints(self, view: BoxView, width: int, room: int) -> list[Content]:
        """What the checkpoints take: all of them, then run by run as far as there is room."""
        if room < 1:
            return []
        if (found := view.sizes) is None:
            text = view.asked["sizes"].instead(self.store.connected)
            return [Content.from_markup("checkpoints  [$text-muted]$text[/]", text=one_line(text))]
        rows = [row for row in found["sizes"] if UNREADABLE not in row and row.get("bytes")]
        if not found["checkpoints"] and not found["unmeasured"]:
            return [Content.from_markup("checkpoints  [$text-muted]none[/]")]
        head = Content.from_markup("checkpoints  [bold]$size[/]", size=byte_size(found["bytes"]))
        head += Content.from_markup(" [$text-muted]in $runs[/]", runs=counted(int(found["runs"]), "run"))
        if found["unmeasured"]:
            head += Content.from_markup(" [$warning]($n not measured yet)[/]", n=f"{found['unmeasured']:,.0f}")
        if found["day_bytes"]:
            head += Content.from_markup("  last 24 h: +$size", size=byte_size(found["day_bytes"]))
        lines = [head]
        most = max((row["bytes"] for row in rows), default=1.0) or 1.0
        for row in rows[: max(0, room - 1)]:
            size = f"{byte_size(row['bytes']):>6}  {row.get('count', 0):>3,.0f}×  "
            name = max(8, min(40, width - len(size) - 14))
            filled, rest = bar(row["bytes"] / most, max(4, min(24, width - name - len(size) - 4)))
            lines.append(
                Content.from_markup(
                    "  $name $size[$secondary on $grpo-track]$filled[/][on $grpo-track]$rest[/]",
                    name=padded(shortened(row["run"], name), name), size=size, filled=filled, rest=rest,
                )
            )  # fmt: skip
        return lines

    @staticmethod
    def _pace(pace: float, free: float) -> Content:
        sign = "+" if pace > 0 else "-"
        text = f"  next 24 h at this pace: {sign}{byte_size(abs(pace) * DAY_S)}"
        full = f", full in {duration(free / pace)}" if pace > 0 and free / pace < 7 * DAY_S else ""
        return Content.from_markup("[$text-muted]$text[/][$warning]$full[/]", text=text, full=full)


class SessionsPanel(ListPanel):
    """The tmux sessions of the box, ours and others."""

    def __init__(self, store: Store, view: Callable[[], BoxView], *, id: str) -> None:
        super().__init__(store, id=id)
        self._view = view

    @property
    def count(self) -> int:
        return len(self.store.sessions)

    @property
    def current(self) -> str:
        """Name of the session under the cursor; "" without one."""
        return str(self.store.sessions[self.cursor]["name"]) if self.count else ""

    def state(self) -> object:
        store, view = self.store, self._view()
        minute = int(store.now() / 10)
        return (
            store.versions["sessions"],
            view.version,
            self.cursor,
            minute,
            self.size,
            self.app.theme,
            self.has_focus,
        )

    def refresh_titles(self) -> None:
        hint = Content.from_markup("[$text-muted]$key attaches[/]", key=self.key("attach_session"))
        hint = hint if self.count else Content()
        problem = self.store.topic_problem("sessions")
        self.set_titles("sessions", Content.from_markup("[$warning]$text[/]", text=problem) if problem else hint)

    def empty(self) -> Text:
        problem = self.store.topic_problem("sessions")
        return Text(f"? {one_line(problem)}" if problem else "no sessions: n on Home launches a run in one")

    def line(self, index: int, width: int) -> Text:
        session = self.store.sessions[index]
        muted = self.get_component_rich_style("list--muted", partial=True)
        created = session.get("created")
        age = self.store.age(created) if created else None
        started = "" if age is None else f"started {short_age(age)} ago"
        cells = (what_of(session, {row.name for row in self.store.runs or ()}), state_of(session), started)
        name = Sized("name", max(16, min(40, width // 4)), is_left=True)
        last = one_line(self._view().lines.get(str(session["name"]), ""))[:width]
        texts = [(str(session["name"]), ""), *((cell, muted if cell == "not ours" else "") for cell in cells)]
        return row_text((name, *COLUMNS), [*texts, (last, muted)])


class ChecksPanel(Panel):
    """The findings of the box's doctor, and its clock; what is wrong comes first, with its way out."""

    def state(self) -> object:
        said = "" if self.store.checks else self.store.doctor.problem or self.store.doctor.words()
        return (self.store.versions["link"], self.size, self.app.theme, said)

    def refresh_titles(self) -> None:
        self.set_titles("checks")

    def render(self) -> Content:
        width, height = max(1, self.size.width), self.size.height
        if not self.store.checks:
            doctor = self.store.doctor
            tone, text = (
                ("$warning", f"✖ {doctor.problem}; asked again with the next link")
                if doctor.problem
                else ("$text-muted", doctor.instead(self.store.connected))
            )
            return Content.from_markup(f"[{tone}]$text[/]", text=text)
        checks = [*self.store.checks, clock_check(self.store.skew_s)]
        lines = [
            Content.from_markup(
                "[$warning]▲ $name[/] $detail  [$text-muted]$hint[/]",
                name=str(check["name"]), detail=one_line(check.get("detail", "")), hint=one_line(check.get("hint", "")),
            ).truncate(width, ellipsis=True)
            for check in checks if not check.get("ok")
        ]  # fmt: skip
        row = Content()
        for check in checks:
            if not check.get("ok"):
                continue
            detail = one_line(check.get("detail", ""))
            short = f"✔ {check['name']}" + (f" {detail}" if len(detail) <= 24 else "")
            part = Content.from_markup("[$success]✔[/]$rest   ", rest=short[1:])
            if row.cell_length + part.cell_length > width and row.cell_length:
                lines.append(row)
                row = Content()
            row += part
        return Content("\n").join([*lines, row][: max(1, height)])
