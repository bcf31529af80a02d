"""The agent's environment: a known set of variables and a UTF-8 locale. Used by the laptop's local transport, too."""

from __future__ import annotations

import os
from collections.abc import Mapping

PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "TMUX_TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""Variables kept besides PATH: what a tmux server started by the agent, and so a run, may need. No tokens."""
USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's PATH (or a usual one where it is empty), the variables in PASSED_ON, and a UTF-8 locale."""
    given = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    path = given or (USUAL_PATH if os.name == "posix" else ())
    kept = {name: environment[name] for name in PASSED_ON if name in environment}
    return {"PATH": os.pathsep.join(path), **kept, "LC_ALL": "C.UTF-8"}
