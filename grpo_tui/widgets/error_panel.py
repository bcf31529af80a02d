"""Why the selected run failed: summary, rank and signal from its status, and the last lines of its console."""

from __future__ import annotations

from textwrap import wrap

from textual.content import Content

from grpo_tui.model.formatting import one_line
from grpo_tui.model.run_logs import console_text
from grpo_tui.widgets.panel import Panel

SUMMARY_LINES = 3


class ErrorPanel(Panel):
    """Shown only if the selected run failed with an error."""

    @property
    def wanted(self) -> bool:
        row = self.store.run
        return bool(row and row.error and row.state in ("crashed", "killed", "lost"))

    def state(self) -> object:
        return (self.store.versions["runs"], self.store.versions["shown"], self.store.selected, self.size)

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
        hint = "[$text-muted]press r to resume from the last checkpoint[/]" if self.store.complete_steps() else ""
        self.set_titles(title, hint)

    def lines_wanted(self) -> int:
        return len(self._summary(SUMMARY_LINES)) + min(7, len(self._tail()))

    def _summary(self, most: int) -> list[str]:
        """The summary, wrapped to at most ``most`` lines."""
        row, width = self.store.run, max(20, self.size.width)
        lines = wrap(one_line(str(row.error.get("summary", "unknown"))), width) if row else []
        return [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines or ["unknown"]

    def _tail(self) -> list[str]:
        """The last lines of the console."""
        row = self.store.run
        lines = [str(line) for line in row.error.get("console_tail") or ()] if row else []
        return [console_text(line.encode(errors="replace"))[:400] for line in lines if line.strip()]

    def render(self) -> Content:
        row = self.store.run
        if row is None:
            return Content()
        width, height = self.size
        summary = self._summary(SUMMARY_LINES if height > SUMMARY_LINES else max(1, height))
        lines = [Content.from_markup("[bold]$line[/]", line=line) for line in summary]
        room = max(0, height - len(lines))
        shown = self._tail()[-room:] if room else []
        lines += [Content.from_markup("[$text-muted]$line[/]", line=line) for line in shown]
        return Content("\n").join([line.truncate(max(1, width), ellipsis=True) for line in lines])
