"""Lists of the box view: disks, sessions, checks."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.content import Content

from grpo_train.run_dir.display import duration
from grpo_tui.model.box_clock import clock_check
from grpo_tui.model.formatting import bar, byte_size, counted, one_line, padded, percent, short_age, shortened
from grpo_tui.model.store import Store
from grpo_tui.model.table import Sized
from grpo_tui.views.box.charts import facts_age, facts_missing
from grpo_tui.views.box.model import BoxView, state_of, what_of
from grpo_tui.widgets.list_panel import ListPanel, row_text
from grpo_tui.widgets.panel import Panel
from remote.protocol.rows import UNREADABLE

FULL = 0.95
DAY_S = 86_400
NOT_BAR = 19
"""Cells of a disk's line beside its figures and its bar: a short name, its share, gaps."""
COLUMNS = (
    Sized("what", 14, is_left=True),
    Sized("state", 16, is_left=True, gap=0),
    Sized("since", 9, is_left=True, gap=0),
    Sized("line", 0, gap=0),
)
"""Of a session, after its name."""


class DisksPanel(Panel):
    """How full the file systems are, and how fast the one of the runs fills."""

    def __init__(self, store: Store, view: Callable[[], BoxView], *, id: str) -> None:
        super().__init__(store, id=id)
        self._view = view

    def state(self) -> object:
        return (self._view().version, self.size, self.app.theme)

    def refresh_titles(self) -> None:
        hint = Content.from_markup("[$text-muted]$key lists what can go[/]  ", key=self.key("spare"))
        sizes = self._view().sizes
        has_some = sizes is not None and sizes["checkpoints"]
        age = facts_age(self._view(), self.store)
        self.set_titles("disk", hint + age if has_some and self.size.width >= 40 else age)

    def render(self) -> Content:
        view, width = self._view(), self.size.width
        if view.facts is None:
            return facts_missing(view)
        lines: list[Content] = []
        for disk in view.facts["disks"]:
            if reason := disk.get(UNREADABLE):
                lines.append(Content.from_markup("[$warning]unreadable: $reason[/]", reason=one_line(reason)))
                continue
            used, total = disk.get("used", 0.0), disk.get("total", 0.0)
            share = used / total if total else 0.0
            figures = f"{byte_size(used)} of {byte_size(total)}"
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
            text = view.asked["sizes"].instead()
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
        sign = "+" if pace > 0 else "−"
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
        cells = (what_of(session, {row.name for row in self.store.runs or ()}), state_of(session), short_age(age))
        name = Sized("name", max(16, min(40, width // 3)), is_left=True)
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
                else ("$text-muted", doctor.instead())
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
