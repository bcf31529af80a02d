"""The user's keys: keymap.yaml checked and applied to the actions. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.suggest import did_you_mean
from grpo_tui.actions.action import Action
from grpo_tui.actions.registry import ACTIONS
from grpo_tui.user_files import read_user_file, user_file


class KeymapError(UserError):
    """A keymap with an unknown action, an empty key, or one key for two actions."""

    code = "bad_config"


def with_keymap(keymap: Mapping[str, str], actions: tuple[Action, ...] = ACTIONS) -> tuple[Action, ...]:
    """The actions with the user's keys. Raises KeymapError."""
    known = sorted(action.id for action in actions)
    for name in keymap:
        if name not in known:
            raise KeymapError(f"unknown action '{name}'; {did_you_mean(name, known)}")
    changed = tuple(replace(action, key=str(keymap.get(action.id, action.key))) for action in actions)
    owners: dict[str, list[Action]] = {}
    for action in changed:
        for key in action.keys:
            if not key:
                raise KeymapError(f"{action.id}: empty key; remove the line to keep the default")
            for other in owners.setdefault(key, []):
                if action.shares_a_view(other):
                    raise KeymapError(f"key '{key}' is assigned to both {other.id} and {action.id}")
            owners[key].append(action)
    return changed


def read_keymap() -> dict[str, str]:
    """The user's keymap.yaml, or {} without one. Raises KeymapError."""
    file = user_file("keymap.yaml")
    if (found := read_user_file(file, KeymapError)) is None:
        return {}
    if not isinstance(found, dict):
        raise KeymapError(f"{file}: expected lines of 'action: key'")
    keymap = {}
    for name, keys in found.items():
        if isinstance(keys, list):
            keys = ",".join(map(str, keys))
        keymap[str(name)] = "" if keys is None else str(keys)
    try:
        with_keymap(keymap)
    except KeymapError as error:
        raise KeymapError(f"{file}: {error}") from error
    return keymap
