"""The user's alarms.yaml: rules for metrics. No Textual."""

from __future__ import annotations

from pathlib import Path

from grpo_train.run_dir.errors import UserError
from grpo_tui.model.alarms import Rule

MOST = 64


class AlarmsError(UserError):
    """An alarms.yaml that is not a list of rules."""

    code = "bad_config"


def alarms_path() -> Path:
    """Where the file is."""
    import platformdirs

    return Path(platformdirs.user_config_dir("grpo-tui")) / "alarms.yaml"


def read_alarms() -> tuple[Rule, ...]:
    """The user's rules; () without the file. Raises AlarmsError."""
    file = alarms_path()
    if not file.exists():
        return ()
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise AlarmsError(f"{file}{line}: invalid YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AlarmsError(f"{file}: {error}") from error
    rules = found.get("alarms") if isinstance(found, dict) else None
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise AlarmsError(f"{file}: expected 'alarms:' with a list of rules, such as ess/token < 0.5")
    if len(rules) > MOST:
        raise AlarmsError(f"{file}: more than {MOST} rules")
    try:
        return tuple(Rule.parse(rule) for rule in rules)
    except ValueError as error:
        raise AlarmsError(f"{file}: {error}") from error
