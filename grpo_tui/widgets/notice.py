"""The middle of the screen when there is nothing to chart: what the matter is, and the way on."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from grpo_tui.store import Store
from grpo_tui.words import duration
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
            way = "[bold $primary]b[/] choose or change the box   [bold $primary]c[/] try again   [bold $primary]q[/] quit"
            return "$error", f"{store.box} refused", f"{detail}\n\n{way}", False
        if store.runs is None and link.state in (Link.LOST, Link.CLOSED):
            words, _ = store.link_words()
            return "$error", f"{store.box} cannot be reached", f"{detail}\n\n{words}\nRuns on the box go on.", False
        if store.runs is None:
            waited = store.now() - store.link_since
            more = f"{duration(waited)} so far" if waited >= 3 else ""
            return "$secondary", f"connecting to {store.box} …", detail or more, True
        if problem := self.engine_problem():
            return "$warning", "the engine is not installed on this box", problem, False
        return "$primary", "no runs yet", self.launch_hint, True

    def engine_problem(self) -> str:
        """What to run on the box where it lacks the engine, as markup; "" where it has it."""
        engine = (self.store.host or {}).get("engine")
        if isinstance(engine, dict) and engine.get("ok") is False:
            command = str(engine.get("install") or engine.get("hint") or "")
            reason = _escape(str(engine.get("message") or engine.get("error") or ""))
            return f"{reason}\n\nrun this on the box, then press [bold $primary]c[/]:\n\n[bold]{_escape(command)}[/]"
        return ""

    def render(self) -> Content:
        tone, headline, text, curve = self._message()
        self._seen = (tone, headline, text, curve)
        parts = []
        if curve and self.size.height >= 9:
            parts.append(Content.from_markup(f"[$grpo-faint]{_CURVE}[/]\n\n"))
        parts.append(Content.from_markup(f"[bold {tone}]$headline[/]\n\n", headline=headline))
        parts.append(Content.from_markup(text))
        return Content.assemble(*parts)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
