"""``notify`` of a box in boxes.yaml: what a launch on it is notified by, unless its config says that itself.

It is passed on as overrides, so that the run's ``config.yaml`` has it. PyYAML is imported only when a file is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_train.config.yaml_text import InvalidYaml, load_yaml

_REFERENCE = re.compile(r"\$(?:\{\w+\}|[A-Za-z_]\w*)")
SECTION = "notify"


def problem_of_notify(value: Any) -> str:
    """Why a ``notify`` of boxes.yaml is invalid, or ""."""
    if not isinstance(value, dict) or not value or set(value) - {"command", "url"}:
        return "'notify' must have 'command', 'url' or both"
    command, url = value.get("command", ["x"]), value.get("url", "$X")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) and word for word in command):
        return "'notify.command' must be a list of strings, e.g. [/home/ubuntu/notify]"
    if not isinstance(url, str) or not _REFERENCE.fullmatch(url):
        return (
            "'notify.url' must be the name of a variable, such as $NOTIFY_URL, because a webhook's address is a "
            "secret; set it in .env on the box"
        )
    return ""


def notify_overrides(notify: Mapping[str, Any], config_text: str, overrides: Sequence[str]) -> list[str]:
    """The overrides of a launch that stand for a box's ``notify``; [] where the config or an override has its own."""
    if not notify or any(override.strip().startswith(f"{SECTION}.") for override in overrides):
        return []
    try:
        document = load_yaml(config_text)
    except InvalidYaml:
        return []  # the check of the config says so
    if not isinstance(document, dict) or SECTION in document:
        return []
    return [f"{SECTION}.{key}={json.dumps(notify[key])}" for key in ("command", "url") if key in notify]
