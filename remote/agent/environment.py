"""The agent's environment: a known set of variables and a UTF-8 locale. Used by the laptop's local transport, too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "TMUX_TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "SLURM_CONF"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""Variables kept besides PATH: what the agent, and so a run, may need. No tokens."""
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")
USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's PATH (or a usual one where it is empty), the variables in PASSED_ON, and a UTF-8 locale."""
    given = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    path = given or (USUAL_PATH if os.name == "posix" else ())
    kept = {name: environment[name] for name in PASSED_ON if name in environment}
    return {"PATH": os.pathsep.join(path), **kept, "LC_ALL": "C.UTF-8"}


def expand(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as a shell would assign them, one after the other.

    ``~`` at the beginning and after ``:`` is a home directory, ``$NAME`` and ``${NAME}`` are what is set (else ""),
    ``$$`` is a dollar sign.
    """
    known = dict(environment)
    for name, value in variables.items():
        value = ":".join(os.path.expanduser(part) for part in value.split(":"))
        known[name] = _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else known.get(m[1] or m[2], ""), value)
    return {name: known[name] for name in variables}
