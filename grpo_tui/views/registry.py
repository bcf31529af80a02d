"""The views of one selection: Home is at the bottom, the one that is shown above it, dialogs above that."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from grpo_tui.box.store import Store
from grpo_tui.views.home.screen import HomeScreen
from grpo_tui.views.view import ViewScreen

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.views.box.screen import BoxScreen
    from grpo_tui.views.charts.screen import ChartsScreen
    from grpo_tui.views.compare.screen import CompareScreen
    from grpo_tui.views.history.screen import HistoryScreen
    from grpo_tui.views.logs.screen import LogsScreen
    from grpo_tui.views.rollouts.screen import RolloutsScreen


Shown = TypeVar("Shown", bound=ViewScreen)


class Views:
    """Makes each view when it is first shown, and keeps it."""

    def __init__(self, app: Desk) -> None:
        self._app = app
        self.home = HomeScreen(app)
        self._made: dict[str, ViewScreen] = {"home": self.home}

    @property
    def charts(self) -> ChartsScreen:
        from grpo_tui.views.charts.screen import ChartsScreen

        return self._make(ChartsScreen)

    @property
    def rollouts(self) -> RolloutsScreen:
        from grpo_tui.views.rollouts.screen import RolloutsScreen

        return self._make(RolloutsScreen)

    @property
    def compare(self) -> CompareScreen:
        from grpo_tui.views.compare.screen import CompareScreen

        return self._make(CompareScreen)

    @property
    def box(self) -> BoxScreen:
        from grpo_tui.views.box.screen import BoxScreen

        return self._make(BoxScreen)

    @property
    def history(self) -> HistoryScreen:
        from grpo_tui.views.history.screen import HistoryScreen

        return self._make(HistoryScreen)

    @property
    def logs(self) -> LogsScreen:
        from grpo_tui.views.logs.screen import LogsScreen

        return self._make(LogsScreen)

    def _make(self, kind: type[Shown]) -> Shown:
        if (made := self._made.get(kind.NAME)) is None:
            made = self._made[kind.NAME] = kind(self._app)
            self._app.install_screen(made, kind.NAME)
        assert isinstance(made, kind)
        return made

    @property
    def name(self) -> str:
        """The view that is shown."""
        return self._app.view

    @property
    def shown(self) -> ViewScreen:
        return self._made[self.name]

    def show(self, name: str) -> None:
        """Turn to another view of the selection."""
        if name == self.name:
            return
        if self.name != "home":
            self._app.pop_screen()
        if name != "home":
            screen: ViewScreen = getattr(self, name)
            self._app.push_screen(screen)
        self._app.view = name
        self._app.call_after_refresh(self._app.tick)

    async def set_store(self, store: Store) -> None:
        """Show another box in every view."""
        for view in self._made.values():
            if view.is_mounted:
                await view.set_store(store)
            else:
                view.store = store
