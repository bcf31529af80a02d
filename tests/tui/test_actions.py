from __future__ import annotations

import importlib
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from textual.actions import parse

from grpo_tui.actions import ACTIONS, GROUPS, Action, KeymapError, Situation, key_label, with_keymap
from grpo_tui.app import GrpoApp
from grpo_tui.box.store import Store
from grpo_tui.views.box.screen import BoxScreen
from grpo_tui.views.charts.screen import ChartsScreen
from grpo_tui.views.compare.screen import CompareScreen
from grpo_tui.views.history.screen import HistoryScreen
from grpo_tui.views.home.screen import HomeScreen
from grpo_tui.views.logs.screen import LogsScreen
from grpo_tui.views.rollouts.screen import RolloutsScreen
from remote.events import Link, LinkChanged, RunsReported
from tests.tui.fake_rows import summary

REPO = Path(__file__).parents[2]
SCREENS = {
    screen.NAME: screen
    for screen in (HomeScreen, ChartsScreen, RolloutsScreen, LogsScreen, BoxScreen, CompareScreen, HistoryScreen)
}
VIEWS = tuple(SCREENS)


def targets(action: Action) -> list[partial[Any]]:
    """What an action runs in each of its views."""
    file, name, arguments = parse(action.do)
    if file:
        return [partial(getattr(importlib.import_module(f"grpo_tui.commands.{file}"), name), None)]
    found = [getattr(screen, f"action_{name}", None) for view, screen in SCREENS.items() if action.is_in(view)]
    return [partial(target or getattr(GrpoApp, f"action_{name}"), None, *arguments) for target in found]


def test_every_action_is_complete() -> None:
    for action in ACTIONS:
        assert action.key
        assert action.label
        for target in targets(action):
            inspect.signature(target).bind()
            docstring = inspect.getdoc(target.func) or ""
            assert len(action.help or docstring) > 10, action.id
        assert action.group in GROUPS


def test_an_action_runs_the_same_kind_of_function_in_each_view() -> None:
    for action in ACTIONS:
        assert len({inspect.iscoroutinefunction(target) for target in targets(action)}) == 1, action.id


def test_actions_that_share_a_function_have_help_of_their_own() -> None:
    texts: dict[tuple[str, str], str] = {}
    for action in ACTIONS:
        text = action.help or str(inspect.getdoc(targets(action)[0].func))
        assert texts.setdefault((action.group, text), action.id) == action.id
        assert all(key_label(key) for key in action.keys)


def test_ids_and_keys_do_not_clash() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    for view in VIEWS:
        keys = [key for action in ACTIONS if action.is_in(view) for key in action.keys]
        assert len(set(keys)) == len(keys), view
    assert with_keymap({}) == ACTIONS


def test_panels_use_other_keys() -> None:
    from grpo_tui.kit.lists import LinesPanel, VirtualPanel
    from grpo_tui.views.charts.panels import MetricsPanel
    from grpo_tui.views.home.runs import RunsPanel
    from grpo_tui.views.logs.lines import LogLinesPanel
    from grpo_tui.views.logs.panels import LogFilesPanel

    for view, panel in (
        ("home", RunsPanel),
        ("home", LinesPanel),
        ("charts", MetricsPanel),
        ("logs", LogFilesPanel),
        ("logs", LogLinesPanel),
    ):
        here = [action for action in ACTIONS if action.is_in(view) and action.id != "log_next"]  # the same in a log
        taken = {key for action in here for key in action.keys}
        inherited = VirtualPanel.BINDINGS if panel._inherit_bindings else []
        for binding in [*inherited, *panel.BINDINGS]:
            keys = binding[0] if isinstance(binding, tuple) else binding.key
            assert not taken & set(keys.split(",")), panel


def test_keymap_changes_keys() -> None:
    changed = with_keymap({"launch": "ctrl+n"})
    assert next(action for action in changed if action.id == "launch").key == "ctrl+n"
    with pytest.raises(KeymapError, match="did you mean launch"):
        with_keymap({"lanch": "x"})
    with pytest.raises(KeymapError, match="'s' is assigned to both launch and stop"):
        with_keymap({"launch": "s"})
    with pytest.raises(KeymapError, match="'s' is assigned to both stop and follow"):
        with_keymap({"follow": "s"})
    assert with_keymap({"follow": "l"}), "another view has this key"


def test_example_keymap_has_every_default() -> None:
    example = yaml.safe_load((REPO / "config" / "keymap.example.yaml").read_text())
    assert example == {action.id: action.key for action in ACTIONS}


def reasons(store: Store, readonly: bool = False) -> dict[str, str]:
    situation = Situation(store, readonly)
    return {action.id: action.reason(situation) for action in ACTIONS}


def test_reasons_name_what_is_missing() -> None:
    store = Store("box")
    assert "not connected" in reasons(store)["launch"]
    store.apply(LinkChanged(Link.CONNECTED))
    assert reasons(store)["launch"] == ""
    assert reasons(store)["stop"] == "no run selected"
    store.apply(
        RunsReported([summary("a", "running"), summary("b", "stopped"), summary("c", "running", stop_asked=True)])
    )
    store.select("a")
    why = reasons(store)
    assert (why["stop"], why["kill"]) == ("", "")
    assert why["resume"] == "a is running; stop it first"
    assert why["attach"] == "a has no tmux session: it was started from a shell on the box"
    store.select("b")
    assert reasons(store)["attach"] == "the tmux session of b is closed"
    assert reasons(store)["stop"] == "b is not running (stopped)"
    assert reasons(store)["resume"] == ""
    store.show("b", {"checkpoints": []})
    assert reasons(store)["resume"] == "b has no complete checkpoint"
    store.select("c")
    assert "already requested" in reasons(store)["stop"]
    assert reasons(store)["quit"] == ""


def test_readonly_forbids_changes() -> None:
    store = Store("box")
    store.apply(LinkChanged(Link.CONNECTED))
    store.apply(RunsReported([summary("a", "running")]))
    store.select("a")
    why = reasons(store, readonly=True)
    for name in ("launch", "stop", "eval", "resume", "kill"):
        assert "--readonly" in why[name]
    assert why["boxes"] == why["help"] == ""
