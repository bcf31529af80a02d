"""Why the selected run failed or cannot be read: summary, rank and signal, and the last lines of its console."""

from __future__ import annotations

from textwrap import wrap

from textual.content import Content

from grpo_train.run_dir.display import state_label
from grpo_tui.model.formatting import one_line
from grpo_tui.widgets.panel import TONES, Panel
from remote.protocol.rows import UNREADABLE

SUMMARY_LINES = 5
SUMMARY_LENGTH = 4_000


class ErrorPanel(Panel):
    """Shown only if the selected run failed with an error or cannot be read."""

    @property
    def wanted(self) -> bool:
        row = self.store.run
        return bool(row and row.error and row.state in ("crashed", "killed", "lost", UNREADABLE))

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
            facts.append(signal)
        glyph, word, tone = state_label(row.state)
        title = Content.from_markup(f"[{TONES[tone]}]$state[/]", state=f"{glyph} {word}")
        if facts:
            title += Content.from_markup(" [$text-muted]$facts[/]", facts=" · ".join(facts))
        hint = Content()
        if row.is_over and self.store.complete_steps():
            text = "[$text-muted]press $key to resume from the last checkpoint[/]"
            hint = Content.from_markup(text, key=self.key("resume"))
        self.set_titles(title, hint)

    def lines_wanted(self) -> int:
        return len(self._summary(SUMMARY_LINES)) + min(7, len(self._tail()))

    def _summary(self, most: int) -> list[str]:
        """The summary, wrapped to at most ``most`` lines."""
        row, width = self.store.run, max(20, self.size.width)
        summary = row.error.get("summary") or "unknown" if row else "unknown"
        lines = wrap(one_line(summary[:SUMMARY_LENGTH]), width)
        return [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines or ["unknown"]

    def _tail(self) -> list[str]:
        """The last lines of the console."""
        row = self.store.run
        lines = row.error.get("console_tail") or () if row else ()
        return [line.expandtabs(4)[:400] for line in lines if line.strip()]

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
