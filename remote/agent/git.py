"""git on this box."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from remote.protocol import RemoteError

LIMIT_S = 300.0
"""A home directory on a network disk is slow."""
_OPTIONS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.autocrlf=false", "core.eol=lf"),
    *("advice.detachedHead=false", "safe.directory=*", "safe.bareRepository=all", "protocol.file.allow=always"),
    *("submodule.recurse=false", "fetch.recurseSubmodules=false", "apply.ignoreWhitespace=no"),
    *("filter.lfs.process=", "filter.lfs.smudge=", "filter.lfs.clean=", "filter.lfs.required=false"),
)
"""What of the account's own configuration would change what git does here. Files of Git LFS stay pointers."""
_NEVER_ASK = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes", "GIT_ASKPASS": "/bin/false"}


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder that is the top of its repository, or bare; it never asks anything.

    Raises RemoteError: ``no_git``, ``git`` with git's own words.
    """
    program = shutil.which("git")
    if program is None:
        raise RemoteError("no_git", "git is not installed on this box", "sudo apt-get install -y git")
    options = [word for option in _OPTIONS for word in ("-c", option)]
    try:
        done = subprocess.run(
            [program, *options, *arguments],
            cwd=folder,
            env={**os.environ, **_NEVER_ASK, "GIT_CEILING_DIRECTORIES": os.path.realpath(folder.parent)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        message = f"git {arguments[0]} has not ended within {LIMIT_S:.0f} s in {folder}"
        raise RemoteError("git", message) from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise RemoteError("git", f"git {arguments[0]} in {folder}: {words}")
    return done.stdout.decode(errors="surrogateescape").rstrip("\n")
