"""Why the selected run crashed, as far as its status says: the summary, rank and signal, the console's last lines."""

from __future__ import annotations

from textual.content import Content

from grpo_tui.widgets.panel import Panel
from grpo_tui.words import one_line


class ErrorPanel(Panel):
    """Shown only while the selected run has an error to tell."""

    @property
    def wanted(self) -> bool:
        row = self.store.run
        return bool(row and row.error and row.state in ("crashed", "killed", "lost"))

    def state(self) -> object:
        return (self.store.versions["runs"], self.store.selected, self.size)

    def refresh_titles(self) -> None:
        row = self.store.run
        if row is None:
            return
        facts = []
        if (rank := row.error.get("rank")) is not None:
            facts.append(f"rank {rank}")
        if signal := row.error.get("signal"):
            facts.append(str(signal))
        title = f"[$error]✖ {row.state}[/]" + (f" [$text-muted]{' · '.join(facts)}[/]" if facts else "")
        self.set_titles(title, "[$text-muted]r resumes from the last checkpoint[/]")

    def lines_wanted(self) -> int:
        row = self.store.run
        return 1 + min(7, len(row.error.get("console_tail") or ())) if row else 1

    def render(self) -> Content:
        row = self.store.run
        if row is None:
            return Content()
        width, height = self.size
        lines = [Content.from_markup("[bold]$summary[/]", summary=one_line(str(row.error.get("summary", "unknown"))))]
        tail = [str(line) for line in row.error.get("console_tail") or () if str(line).strip()]
        room = max(0, height - 1)
        shown = tail[-room:] if room else []
        lines += [Content.from_markup("[$text-muted]$line[/]", line=line.replace("\t", "  ")[:400]) for line in shown]
        return Content("\n").join([line.truncate(max(1, width), ellipsis=True) for line in lines])
