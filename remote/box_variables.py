"""``env`` of a box in boxes.yaml: variables of every command that is started on the box. Not for secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from grpo_train.run_dir import ROOT_VARIABLE
from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.umask import UMASK_VARIABLE
from remote.base import BoxesError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"(?:^|_)(?:TOKEN|KEY)$|SECRET|PASSWORD", re.IGNORECASE)
_RESERVED: Mapping[str, str] = {
    ROOT_VARIABLE: "set 'root' of the box",
    UMASK_VARIABLE: "set 'umask' of the box",
    "LC_ALL": "the agent needs a UTF-8 locale; set LANG",
}


def read_variables(node: Any, file: str) -> dict[str, str]:
    """The variables of a YAML node, as they are written: ``0`` and ``true`` stay what they are.

    Raises BoxesError that names the line, and never the value, which may be a secret.
    """
    import yaml

    def refuse(at: Any, problem: str, code: str = "bad_config") -> BoxesError:
        return BoxesError(f"{file}:{at.start_mark.line + 1}: 'env': {problem}", code=code)

    if not isinstance(node, yaml.MappingNode):
        raise refuse(node, "expected variables with their values, such as {HF_HOME: /data/hf}")
    found: dict[str, str] = {}
    for key, value in node.value:
        name = str(key.value)
        if not _NAME.fullmatch(name):
            raise refuse(key, f"'{name}' is not a variable's name: letters, digits and '_', not starting with a digit")
        if name in _RESERVED:
            raise refuse(key, f"'{name}' cannot be set here; {_RESERVED[name]}")
        if not isinstance(value, yaml.ScalarNode) or value.tag == "tag:yaml.org,2002:null":
            raise refuse(key, f"the value of '{name}' must be a string")
        if _SECRET_NAME.search(name) or find_secret(f"{name}={value.value}"):
            message = f"'{name}' looks like a secret, which process lists would show; put it in .env: grpo-tui env put"
            raise refuse(key, message, "secret")
        if not value.value.isprintable():
            raise refuse(key, f"the value of '{name}' must be one line of printable characters")
        found[name] = str(value.value)
    return found
