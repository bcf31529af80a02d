"""The middle of the screen when the box has no runs to show: why, and what to do."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from grpo_train.run_dir.display import duration
from grpo_train.run_dir.lazy_dataclass import dataclass
from grpo_tui.widgets.blocks import lines_in_blocks
from grpo_tui.widgets.panel import Line
from remote.events import Link

_CURVE = "⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⢀⣀⡠⠤⠔⠒⠒⠊⠉⠉\n⠀⠀⠀⠀⠀⢀⡠⠔⠊⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀\n⣀⡠⠤⠒⠊⠁⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀"


_RETRIES = Content("Runs on the box continue. The list is requested again every few seconds.")


@dataclass(frozen=True)
class _Message:
    tone: str
    headline: str
    text: Content
    keys: Content = Content()
    curve: bool = False


class Notice(Line):
    """One of: connecting, unreachable, not connected, the box cannot train, no runs yet."""

    launch_hint = ""
    """Shown while there are no runs, instead of the key that launches one (markup)."""

    @property
    def wanted(self) -> bool:
        """Whether the notice replaces the panels."""
        return not self.store.runs or self.store.link.state is Link.REFUSED

    def state(self) -> object:
        return self._message()

    def _message(self) -> _Message:
        store, link = self.store, self.store.link
        detail = Content(link.detail)
        if link.state is Link.REFUSED:
            return _Message("$error", f"not connected to {store.box}", detail, self._keys())
        if store.runs is None and link.state in (Link.LOST, Link.CLOSED):
            label, _ = store.link_label()
            text = _paragraphs(detail, Content(f"{label}\nRuns on the box continue."))
            return _Message("$error", f"cannot reach {store.box}", text, self._keys())
        if store.runs is None and (problem := store.topic_problem("runs")):
            text = _paragraphs(Content(problem), _RETRIES)
            return _Message("$warning", f"{store.box} cannot list its runs", text, self._keys(again=False))
        if store.runs is None:
            waited = store.now() - store.link_since
            elapsed = Content(duration(waited) if waited >= 3 else "")
            return _Message("$secondary", f"connecting to {store.box} …", detail or elapsed, curve=True)
        if check := store.failed_check():
            text, keys = _check_text(check), self._keys()
            return _Message("$warning", "this box cannot train yet", text, keys)
        hint = self.launch_hint or f"press [bold $primary]{self.key('launch')}[/] to launch a run"
        return _Message("$primary", "no runs yet", Content.from_markup(hint), curve=True)

    def _keys(self, again: bool = True) -> Content:
        """The keys that lead out."""
        labels = {"boxes": "choose or change the box", "reconnect": "try again", "quit": "quit"}
        keys = [
            Content.from_markup("[bold $primary]$key[/] $label", key=self.key(action), label=label)
            for action, label in labels.items()
            if again or action != "reconnect"
        ]
        return Content("   ").join(keys)

    def render(self) -> Content:
        message, (width, height) = self._message(), self.size
        parts = []
        if message.curve and height >= 9:
            curve = lines_in_blocks(_CURVE) if self.in_blocks else _CURVE
            parts.append(Content.from_markup(f"[$grpo-faint]{curve}[/]\n\n"))
        headline = Content.from_markup(f"[bold {message.tone}]$headline[/]", headline=message.headline)
        text = [Content.assemble(*parts, headline), *([message.text] if message.text else [])]
        if not message.keys:
            return _paragraphs(*text)
        keys = message.keys.wrap(max(1, width))
        lines = _paragraphs(*text).wrap(max(1, width))
        room = height - len(keys) - 1  # a long text must not push the keys off the screen
        if 1 < room < len(lines):
            lines = [*lines[: room - 1], lines[room - 1].truncate(width - 1) + "…"]
        return Content("\n").join([*lines, Content(), *keys])


def _check_text(check: dict[str, Any]) -> Content:
    """A failed check and the command that fixes it."""
    detail, hint = check.get("detail", ""), check.get("hint", "")
    text = Content.from_markup("[$grpo-muted]$name:[/] $detail", name=check["name"], detail=detail)
    return _paragraphs(text, Content.from_markup("[bold $accent]$hint[/]", hint=hint)) if hint else text


def _paragraphs(*parts: Content) -> Content:
    return Content("\n\n").join(parts)
