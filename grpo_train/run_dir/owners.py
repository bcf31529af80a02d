"""Files and processes of other accounts: whose they are, and the command that fixes it. Standard library only.

Boxes are shared. What another account owns must be reported with the account's name; the mode or owner of an existing
file is never changed to get access.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def account(uid: int | None = None) -> str:
    """Name of an account, by default this process's; ``uid N`` for one without a name."""
    number = os.geteuid() if uid is None else uid
    try:
        import pwd  # POSIX only

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"uid {number}"


def foreign_owner(path: Path) -> str:
    """Name of the other account that owns a file or directory; "" if it is this account's, or unknown."""
    try:
        uid = os.stat(path).st_uid
    except OSError:
        return ""
    return "" if uid == os.geteuid() else account(uid)


def process_owner(pid: int) -> str:
    """Name of the other account that a live process belongs to; "" for this account's, and for a missing process."""
    return foreign_owner(Path(f"/proc/{pid}")) if pid > 1 else ""


def not_readable(path: Path) -> str:
    """Message for a path that this account may not read."""
    place = _visible(path)
    return _message(place, "read", f"chmod -R go+rX {shlex.quote(str(place))}", as_owner=True)


def not_writable(path: Path) -> str:
    """Message for a path that this account may not create or write."""
    place = _visible(path)
    return _message(place, "write to", f"chown {_account_argument()} {shlex.quote(str(place))}")


def create_command(path: Path) -> str:
    """Command that creates a directory for this account below one that it may not write."""
    return f"sudo install -d -o {_account_argument()} {shlex.quote(str(path))}"


def not_stoppable(run: Path, stop_file: Path) -> str:
    """Message for a run whose stop file this account may not write."""
    return _message(_visible(run), "stop", f"touch {shlex.quote(str(stop_file))}", as_owner=True)


def _message(place: Path, verb: str, command: str, *, as_owner: bool = False) -> str:
    owner = foreign_owner(place)
    if not owner:
        own = f"chmod -R u+rwX {shlex.quote(str(place))}"
        return f"{place}: Permission denied, although it belongs to {account()}; on the box: {own}"
    sudo = f"sudo -u {shlex.quote(owner)}" if as_owner else "sudo"
    return f"{place} belongs to {owner}, and {account()} may not {verb} it; on the box: {sudo} {command}"


def _visible(path: Path) -> Path:
    """The path, or its nearest parent that exists and whose owner this account can see."""
    for place in (path, *path.parents):
        try:
            os.stat(place)
            return place
        except OSError:
            continue
    return path


def _account_argument() -> str:
    return shlex.quote(account().removeprefix("uid "))
