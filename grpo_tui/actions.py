"""Every action of the face, once: its key, its words, and why it cannot be done now.

Bindings, the key bar, the help screen and the command palette are all made from here. No Textual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from grpo_tui.model.store import RunRow, Store


@dataclass(frozen=True)
class Situation:
    """What decides whether an action makes sense now."""

    store: Store
    readonly: bool = False

    @property
    def run(self) -> RunRow | None:
        return self.store.run


Reason = Callable[[Situation], str]
"""Why an action cannot be done now, in words; "" when it can."""


@dataclass(frozen=True)
class Action:
    """One thing the user can do."""

    id: str
    key: str
    label: str
    """One or two words for the key bar."""
    help: str
    """A sentence for the help screen and the palette."""
    group: str
    reason: Reason = lambda situation: ""
    dangerous: bool = False
    in_bar: bool = True

    @property
    def all_keys(self) -> list[str]:
        """Its keys; the first is the one that is shown."""
        return [key.strip() for key in self.key.split(",")]


KEY_WORDS = {
    "question_mark": "?", "colon": ":", "slash": "/", "escape": "esc", "tilde": "~",
    "left_square_bracket": "[", "right_square_bracket": "]", "ctrl+p": "^p",
}  # fmt: skip


def key_words(key: str) -> str:
    """A key as one would say it."""
    return KEY_WORDS.get(key, key)


def _changes(situation: Situation) -> str:
    if situation.readonly:
        return "started with --readonly: nothing on the box is changed"
    if not situation.store.connected:
        return "the link to the box is down; runs go on"
    return ""


def _of_a_run(situation: Situation) -> str:
    if not (reason := _changes(situation)) and situation.run is None:
        return "no run is selected"
    return reason


def _can_launch(situation: Situation) -> str:
    return _changes(situation)


def _can_stop(situation: Situation) -> str:
    if reason := _of_a_run(situation):
        return reason
    run = situation.run
    assert run is not None
    if not run.is_live:
        return f"{run.name} does not run: it is {run.state}"
    if run.stop_asked:
        return "a stop is asked already; k kills without waiting for the step"
    return ""


def _can_kill(situation: Situation) -> str:
    if reason := _of_a_run(situation):
        return reason
    run = situation.run
    assert run is not None
    live = run.is_live or any(name.startswith("eval_") for name in situation.store.sessions_of(run.name))
    return "" if live else f"{run.name} does not run: it is {run.state}"


def _can_evaluate(situation: Situation) -> str:
    if reason := _of_a_run(situation):
        return reason
    store, run = situation.store, situation.run
    assert run is not None
    if store.shown_at is not None and not any(view.is_complete for view in store.checkpoints()):
        return f"{run.name} has no complete checkpoint yet"
    return ""


def _can_resume(situation: Situation) -> str:
    if reason := _can_evaluate(situation):
        return reason
    run = situation.run
    assert run is not None
    if run.layout != "run":
        return "a run of the older layout can be evaluated, not resumed"
    return f"{run.name} is {run.state}: stop it first" if run.is_live else ""


def _can_attach(situation: Situation) -> str:
    run = situation.run
    if run is None:
        return "no run is selected"
    if not situation.store.connected:
        return "the link to the box is down; runs go on"
    if situation.store.sessions_of(run.name):
        return ""
    if run.is_live:
        return f"{run.name} was started without a tmux session, from a shell on the box"
    return f"{run.name} has no tmux session on the box any more"


def _has_runs(situation: Situation) -> str:
    return "" if situation.store.runs else "there is no run to filter"


def _link_down(situation: Situation) -> str:
    return "the link stands already" if situation.store.connected and not situation.store.ailment() else ""


ACTIONS: tuple[Action, ...] = (
    Action(
        "launch", "n", "launch", "Launch a run: pick a config, see the exact command, start it", "Runs", _can_launch
    ),
    Action("stop", "s", "stop", "Stop the run after this step; it saves first", "Runs", _can_stop),
    Action("eval", "e", "eval", "Evaluate checkpoints of the run on held-out problems", "Runs", _can_evaluate),
    Action("resume", "r", "resume", "Resume the run from one of its checkpoints", "Runs", _can_resume),
    Action("attach", "a", "attach", "Attach to the run's tmux session; detaching comes back here", "Runs", _can_attach),
    Action("kill", "k", "kill", "Kill the run now, without saving (asks first)", "Runs", _can_kill, dangerous=True),
    Action("boxes", "b", "boxes", "Switch to another box, or add one", "Boxes"),
    Action("reconnect", "c", "reconnect", "Try the link again now", "Boxes", _link_down, in_bar=False),
    Action("filter", "slash", "filter", "Show only runs whose name or state has these words", "Look", _has_runs),
    Action("zoom", "enter,z", "zoom", "Fill the screen with the panel in focus", "Look", in_bar=False),
    Action("back", "escape", "back", "Back: from a zoomed panel, from a filter", "Look", in_bar=False),
    Action(
        "log_next", "l", "log tab", "Turn to the next log: train_log, console, rollouts, health", "Look", in_bar=False
    ),
    Action("smooth", "tilde,m", "smooth", "Smooth the curves, or not", "Look", in_bar=False),
    Action("palette", "colon,ctrl+p", "command", "Find any command by its words", "Program"),
    Action("help", "question_mark,f1", "help", "Every key and what it does", "Program"),
    Action("quit", "q", "quit", "Leave; runs on the box go on", "Program"),
)

GROUPS = ("Runs", "Look", "Boxes", "Program")


class KeymapError(Exception):
    """A keymap that names an unknown action or gives one key to two."""


def with_keymap(keymap: Mapping[str, str], actions: tuple[Action, ...] = ACTIONS) -> tuple[Action, ...]:
    """The actions with the user's keys. Raises KeymapError for unknown names and clashes."""
    import difflib

    known = {action.id for action in actions}
    for name in keymap:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            raise KeymapError(
                f"no action '{name}'" + (f"; did you mean {near[0]}?" if near else f" ({', '.join(sorted(known))})")
            )
    changed = tuple(replace(action, key=str(keymap.get(action.id, action.key))) for action in actions)
    taken: dict[str, str] = {}
    for action in changed:
        for key in action.all_keys:
            if not key:
                raise KeymapError(f"no key is given to {action.id}; leave the line out to keep its own")
            if key in taken:
                raise KeymapError(f"the key '{key}' is given to both {taken[key]} and {action.id}")
            taken[key] = action.id
    return changed
