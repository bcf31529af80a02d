"""First start of the demo: makes the tiny model and shows the progress."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from textual import events, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, ProgressBar, Static

from grpo_tui import demo
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.excerpt import Excerpt

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def launch_hint(key: str) -> str:
    """What the demo says in place of runs."""
    return (
        f"press [bold $primary]{key}[/], then [bold $primary]enter[/] to teach a tiny model to add\n\n"
        "[$grpo-muted]half of its sums are correct at first; watch the reward rise[/]"
    )


async def set_up(app: Desk, command: list[str] | None) -> None:
    """Make the model of the demo unless it exists; exit the app if the user quits."""
    root = app.options.demo_root
    if root is None or demo.model_exists(root):
        return
    dialog = DemoSetupScreen(root, command)
    if await app.show_dialog(dialog):
        app.held_keys.pass_on(dialog.unused)
    else:
        app.exit()


class DemoSetupScreen(Dialog[bool]):
    """Dismissed with True once the model exists, with False if the user quits."""

    heading = "first use: making a tiny model"

    def __init__(self, root: Path, command: list[str] | None = None) -> None:
        super().__init__()
        self.root, self.command = root, command
        self.unused: list[events.Key] = []
        """Keys that this dialog has no use for: they are typed for the app, which is behind it."""

    def compose_body(self) -> ComposeResult:
        yield Static(
            Content.from_markup(
                "A language model with one million parameters learns the format of additions on this machine's CPU. "
                "This takes about a minute, once. Reinforcement learning then teaches it to add correctly.\n"
            ),
            classes="message",
        )
        yield ProgressBar(total=1.0, show_eta=False, id="bar")
        yield Static("", id="progress-line")
        yield Excerpt("", id="problem")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Quit", id="cancel", compact=True)
        yield Button("Try again", id="again", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#again").display = False
        self.make()

    def on_key(self, event: events.Key) -> None:
        if self.focused is None and event.key not in self.active_bindings:
            self.unused.append(event)

    def chosen(self, button: str) -> None:
        self.make()

    def action_cancel(self) -> None:
        self.dismiss(False)

    @work(exclusive=True, group="demo", exit_on_error=False, description="making the tiny model")
    async def make(self) -> None:
        """Make the model. On failure, show the last output and offer to try again."""
        self.query_one("#again").display = False
        self.query_one("#problem", Static).update("")
        bar, line = self.query_one(ProgressBar), self.query_one("#progress-line", Static)

        def show(share: float, text: str) -> None:
            bar.update(progress=share)
            line.update(Content.from_markup("[$grpo-muted]$text[/]", text=text))

        show(0.0, "starting grpo-train …")
        try:
            await demo.make_model(self.root, show, self.command)
        except (demo.DemoError, OSError) as error:
            problem = Content.from_markup("[$error]✖ cannot make the tiny model[/]\n$error", error=str(error))
            self.query_one("#problem", Static).update(problem)
            again = self.query_one("#again")
            again.display = True
            again.focus()
            self.unused.clear()
            return
        self.dismiss(True)
