"""The user's alarms.yaml: rules for metrics, and the signals that the terminal gets. No Textual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.suggest import did_you_mean
from grpo_tui.model.alarms import BELL, WAYS, Rule
from grpo_tui.user_files import read_user_file, user_file

MOST = 64


class AlarmsError(UserError):
    """An alarms.yaml that is not a list of rules."""

    code = "bad_config"


def alarms_path() -> Path:
    """Where the file is."""
    return user_file("alarms.yaml")


@dataclass(frozen=True)
class Alarms:
    """Content of an alarms.yaml."""

    rules: tuple[Rule, ...] = ()
    terminal: tuple[str, ...] = (BELL,)
    """Signals to the terminal for new entries of "needs you", see :mod:`grpo_tui.terminal_notice`."""


def read_alarms() -> Alarms:
    """The user's alarms; those of an empty file without one. Raises AlarmsError."""
    file = alarms_path()
    if (found := read_user_file(file, AlarmsError)) is None:
        return Alarms()
    if not isinstance(found, dict):
        raise AlarmsError(f"{file}: expected 'alarms:' with a list of rules, such as ess/token < 0.5")
    if unknown := [str(key) for key in found if key not in ("alarms", "terminal")]:
        raise AlarmsError(f"{file}: unknown key '{unknown[0]}'; {did_you_mean(unknown[0], ['alarms', 'terminal'])}")
    return Alarms(_rules(file, found.get("alarms", [])), _terminal(file, found.get("terminal", [BELL])))


def _terminal(file: Path, ways: object) -> tuple[str, ...]:
    if not isinstance(ways, list) or not all(way in WAYS for way in ways):
        raise AlarmsError(f"{file}: expected 'terminal:' with a list of {', '.join(WAYS)}; [] for none")
    return tuple(dict.fromkeys(ways))


def _rules(file: Path, rules: object) -> tuple[Rule, ...]:
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise AlarmsError(f"{file}: expected 'alarms:' with a list of rules, such as ess/token < 0.5")
    if len(rules) > MOST:
        raise AlarmsError(f"{file}: more than {MOST} rules")
    try:
        return tuple(Rule.parse(rule) for rule in rules)
    except ValueError as error:
        raise AlarmsError(f"{file}: {error}") from error
