"""What an evaluated step was graded under: two steps with the same conditions can be compared problem by problem."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from remote.agent.log_file import open_log, resolve_log
from remote.protocol import RemoteError

MAX_BYTES = 4 << 20
"""Of a summary."""
MAX_CONDITIONS = 64
MAX_TEXT = 200
NOT_COMPARED = ("weights", "seed")
"""Of the key of the samples: the weights are what is compared, the seed only picks the random numbers."""


def conditions(root: Path, folder: str, follow_links: bool) -> dict[str, Any]:
    """The problems, decoding parameters and grader of the evaluated step in ``folder``, one value a name; empty where
    they are not recorded."""
    try:
        descriptor = open_log(resolve_log(root, f"{folder}/summary.json"), root, follow_links)
    except (OSError, RemoteError):
        return {}
    try:
        key = json.loads(os.pread(descriptor, MAX_BYTES, 0)).get("key")
        found: dict[str, Any] = {}
        for part in ("samples", "grading"):
            values = key.get(part)
            if isinstance(values, dict):
                _flatten(found, "", {name: one for name, one in values.items() if name not in NOT_COMPARED})
        return dict(list(found.items())[:MAX_CONDITIONS])
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    finally:
        os.close(descriptor)


def _flatten(found: dict[str, Any], prefix: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        full = f"{prefix}{name}"[:MAX_TEXT]
        if isinstance(value, dict):
            _flatten(found, f"{full}.", value)
        elif isinstance(value, str) and value.isprintable():
            found[full] = value[:MAX_TEXT]
        elif value is None or (isinstance(value, bool | int | float) and abs(value) < 1e15):
            found[full] = value
        else:
            found[full] = json.dumps(value)[:MAX_TEXT]
