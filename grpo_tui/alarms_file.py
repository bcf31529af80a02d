"""The user's alarms.yaml: rules for metrics. No Textual."""

from __future__ import annotations

from pathlib import Path

from grpo_train.run_dir.errors import UserError
from grpo_tui.model.alarms import Rule
from grpo_tui.user_files import read_user_file, user_file

MOST = 64


class AlarmsError(UserError):
    """An alarms.yaml that is not a list of rules."""

    code = "bad_config"


def alarms_path() -> Path:
    """Where the file is."""
    return user_file("alarms.yaml")


def read_alarms() -> tuple[Rule, ...]:
    """The user's rules; () without the file. Raises AlarmsError."""
    file = alarms_path()
    if (found := read_user_file(file, AlarmsError)) is None:
        return ()
    rules = found.get("alarms") if isinstance(found, dict) else None
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise AlarmsError(f"{file}: expected 'alarms:' with a list of rules, such as ess/token < 0.5")
    if len(rules) > MOST:
        raise AlarmsError(f"{file}: more than {MOST} rules")
    try:
        return tuple(Rule.parse(rule) for rule in rules)
    except ValueError as error:
        raise AlarmsError(f"{file}: {error}") from error
