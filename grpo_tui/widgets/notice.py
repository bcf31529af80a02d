"""The middle of the screen when the box has no runs to show: why, and what to do."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from grpo_train.run_dir.display import duration
from grpo_tui.widgets.panel import Line
from remote.events import Link

_CURVE = "⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⢀⣀⡠⠤⠔⠒⠒⠊⠉⠉\n⠀⠀⠀⠀⠀⢀⡠⠔⠊⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀\n⣀⡠⠤⠒⠊⠁⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀"


_RETRIES = Content("Runs on the box continue. The list is requested again every few seconds.")


class Notice(Line):
    """One of: connecting, unreachable, not connected, the box cannot train, no runs yet."""

    launch_hint = "press [bold $primary]n[/] to launch a run"

    @property
    def wanted(self) -> bool:
        """Whether the notice replaces the panels."""
        return not self.store.runs or self.store.link.state is Link.REFUSED

    def state(self) -> object:
        return self._message()

    def _message(self) -> tuple[str, str, Content, bool]:
        """Tone, headline, text, and whether to draw the curve."""
        store, link = self.store, self.store.link
        detail = Content(link.detail)
        if link.state is Link.REFUSED:
            keys = (("b", "choose or change the box"), ("c", "try again"), ("q", "quit"))
            hint = Content.from_markup("   ".join(f"[bold $primary]{key}[/] {label}" for key, label in keys))
            return "$error", f"not connected to {store.box}", _paragraphs(detail, hint), False
        if store.runs is None and link.state in (Link.LOST, Link.CLOSED):
            label, _ = store.link_label()
            text = _paragraphs(detail, Content(f"{label}\nRuns on the box continue."))
            return "$error", f"cannot reach {store.box}", text, False
        if store.runs is None and (problem := store.topic_problem("runs")):
            return "$warning", f"{store.box} cannot list its runs", _paragraphs(Content(problem), _RETRIES), False
        if store.runs is None:
            waited = store.now() - store.link_since
            elapsed = Content(duration(waited) if waited >= 3 else "")
            return "$secondary", f"connecting to {store.box} …", detail or elapsed, True
        if check := store.failed_check():
            return "$warning", "this box cannot train yet", _check_text(check), False
        return "$primary", "no runs yet", Content.from_markup(self.launch_hint), True

    def render(self) -> Content:
        tone, headline, text, curve = self._message()
        parts = []
        if curve and self.size.height >= 9:
            parts.append(Content.from_markup(f"[$grpo-faint]{_CURVE}[/]\n\n"))
        parts.append(Content.from_markup(f"[bold {tone}]$headline[/]\n\n", headline=headline))
        return Content.assemble(*parts, text)


def _paragraphs(*parts: Content) -> Content:
    return Content("\n\n").join(parts)


def _check_text(check: dict[str, Any]) -> Content:
    """A failed check and the command that fixes it."""
    detail, hint = check.get("detail", ""), check.get("hint", "")
    text = Content.from_markup("[$grpo-muted]$name:[/] $detail", name=check["name"], detail=detail)
    if not hint:
        return text
    return _paragraphs(
        text,
        Content.from_markup("[bold $accent]$hint[/]", hint=hint),
        Content.from_markup("then press [bold $primary]c[/]"),
    )
