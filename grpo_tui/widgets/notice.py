"""The middle of the screen when there is nothing to chart: what the matter is, and the way on."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from grpo_tui.model.formatting import duration
from grpo_tui.model.store import Store
from remote.events import Link

_CURVE = "⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⢀⣀⡠⠤⠔⠒⠒⠊⠉⠉\n⠀⠀⠀⠀⠀⢀⡠⠔⠊⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀\n⣀⡠⠤⠒⠊⠁⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀"


class Notice(Widget):
    """Words for: connecting, link lost before anything came, refused, no engine on the box, no runs yet."""

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(id=id)
        self.store = store
        self.launch_hint = "press [bold $primary]n[/] to launch the first one"
        self._seen: object = None

    @property
    def wanted(self) -> bool:
        """Whether there is nothing else to show."""
        return not self.store.runs or self.store.link.state is Link.REFUSED

    def tick(self) -> None:
        state = self._message()
        if self.display and state != self._seen:
            self._seen = state
            self.refresh()

    def _message(self) -> tuple[str, str, str, bool]:
        """Tone, headline, text (markup), and whether to draw the curve."""
        store, link = self.store, self.store.link
        detail = _escape(link.detail)
        if link.state is Link.REFUSED:
            keys = (("b", "choose or change the box"), ("c", "try again"), ("q", "quit"))
            way = "   ".join(f"[bold $primary]{key}[/] {words}" for key, words in keys)
            return "$error", f"{store.box} refused", f"{detail}\n\n{way}", False
        if store.runs is None and link.state in (Link.LOST, Link.CLOSED):
            words, _ = store.link_words()
            return "$error", f"{store.box} cannot be reached", f"{detail}\n\n{words}\nRuns on the box go on.", False
        if store.runs is None:
            waited = store.now() - store.link_since
            more = f"{duration(waited)} so far" if waited >= 3 else ""
            return "$secondary", f"connecting to {store.box} …", detail or more, True
        if ailment := store.ailment():
            return "$warning", "this box cannot train yet", _ailment_words(ailment), False
        return "$primary", "no runs yet", self.launch_hint, True

    def render(self) -> Content:
        tone, headline, text, curve = self._message()
        self._seen = (tone, headline, text, curve)
        parts = []
        if curve and self.size.height >= 9:
            parts.append(Content.from_markup(f"[$grpo-faint]{_CURVE}[/]\n\n"))
        parts.append(Content.from_markup(f"[bold {tone}]$headline[/]\n\n", headline=headline))
        parts.append(Content.from_markup(text))
        return Content.assemble(*parts)


def _ailment_words(ailment: dict[str, object]) -> str:
    """What is missing and the one command that mends it, as markup."""
    detail, hint = _escape(str(ailment.get("detail", ""))), str(ailment.get("hint", ""))
    way = f"\n\n[bold $accent]{_escape(hint)}[/]\n\nthen press [bold $primary]c[/]" if hint else ""
    return f"[$grpo-muted]{_escape(str(ailment.get('name', '')))}:[/] {detail}{way}"


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
