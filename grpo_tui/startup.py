"""What happens between the first frame and a started app, in the order in which it matters to the user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.run_dir.garbage import resume_collection

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.views.registry import Views

STARTED_S = 0.4
"""From the first frame until the list of runs is usually on the screen."""
COLLECT_AFTER = (10_000, 20, 20)
"""Thresholds of garbage collection. Of 10,000 new objects, most were needed for one frame and are free by then."""


class Startup:
    """Starts what takes time after the first frame."""

    def __init__(self, app: Desk, views: Views, make_model_command: list[str] | None) -> None:
        self._app, self._views, self._make_model_command = app, views, make_model_command

    def mounted(self) -> None:
        """The app is mounted, and nothing is painted yet."""
        if self._app.options.box.is_local:  # its agent works while this process paints
            self._app.open_box()
        self._app.call_after_refresh(self._first_frame)

    def _first_frame(self) -> None:
        app = self._app
        if not app.options.box.is_local:
            app.open_box()
        folder = Path(__file__).parent
        views = sorted(set(folder.glob("views/*/styles.tcss")) - {folder / "views/home/styles.tcss"})
        app.stylesheet.read_all([folder / "styles/dialogs.tcss", *views])
        app.stylesheet.parse()
        if app.options.demo:
            key = app.key("launch")
            self._views.home.set_launch_hint(
                f"press [bold $primary]{key}[/], then [bold $primary]enter[/] to teach a tiny model to add\n\n"
                "[$grpo-muted]half of its sums are correct at first; watch the reward rise[/]"
            )
            app.work("demo model", self._set_up_demo)
        app.set_timer(STARTED_S, self._started)

    def _started(self) -> None:
        """Prepare what is likely to be used."""
        self._views.prepare_help()
        resume_collection(COLLECT_AFTER)

    async def _set_up_demo(self) -> None:
        from grpo_tui import demo
        from grpo_tui.screens.demo_setup import DemoSetupScreen

        root = self._app.options.demo_root
        if root is None or demo.model_exists(root):
            return
        dialog = DemoSetupScreen(root, self._make_model_command)
        if await self._app.show_dialog(dialog):
            self._app.held_keys.pass_on(dialog.unused)
        else:
            self._app.exit()
