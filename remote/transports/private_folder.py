"""The private directory of an ssh client: control socket, questions, prepared files. Only this user can enter it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from remote.base import Refused

LONGEST = 70
"""A Unix socket's path has at most 104 characters, and ssh adds 17 to that of a control socket."""
PREFIX = "grpo-ssh-"
_cleaned = threading.Lock()


def private_folder() -> Path:
    """A new directory that only this user can enter; those of programs that were killed are removed."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    for place in places:
        if not place or len(place) > LONGEST - len(PREFIX) - 20 or not os.access(place, os.W_OK):
            continue
        with _cleaned:
            _remove_abandoned(Path(place))
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
    raise Refused("no directory for ssh's control socket: set XDG_RUNTIME_DIR to a directory of this user")


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            if folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # another user's process
