"""The clean environment an agent works in, whatever it was started from. Read by the laptop's side too."""

from __future__ import annotations

import os
from collections.abc import Mapping

PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "TMUX_TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""What is kept, besides PATH: what a tmux server, and so a run, that the agent starts may need. No tokens."""
USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's PATH (with the usual places behind it), what is passed on, and always a UTF-8 locale."""
    given = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    path = given + [folder for folder in USUAL_PATH if not given and os.name == "posix"]
    kept = {name: environment[name] for name in PASSED_ON if name in environment}
    return {"PATH": os.pathsep.join(path), **kept, "LC_ALL": "C.UTF-8"}
