"""This machine and this account: owners of files, the umask, mounts, priority, variables. Standard library only.

Boxes are shared. What another account owns must be reported with the account's name; the mode or owner of an existing
file is never changed to get access.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import stat_of

# owners: whose files and processes are, and the command that fixes it --------------------------------------


def account(uid: int | None = None) -> str:
    """Name of an account, by default this process's; ``uid N`` for one without a name."""
    number = os.geteuid() if uid is None else uid
    try:
        import pwd  # POSIX only

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):  # an account of another machine, over NFS or in a container
        return f"uid {number}"


def foreign_owner(path: Path) -> str:
    """Name of the other account that owns a file or directory; "" if it is this account's, or unknown."""
    facts = stat_of(path)
    return "" if facts is None or facts.st_uid == os.geteuid() else account(facts.st_uid)


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
    return next((place for place in (path, *path.parents) if stat_of(place)), path)


def _account_argument() -> str:
    return shlex.quote(account().removeprefix("uid "))


# the umask of everything that writes a root: 077 unless the box is configured for a group ------------------
# The agent passes a box's ``umask`` on in ``GRPO_UMASK``, because a tmux server that was there before has its own.
# Files are created with the mode that the umask allows and existing ones are never changed.

UMASK_VARIABLE = "GRPO_UMASK"
PRIVATE = "077"
"""Runs are readable by their owner only."""


def set_umask(text: str | None = None) -> str:
    """Set this process's umask to ``text``, else to ``GRPO_UMASK``, else to 077; returns it as three octal digits.

    Raises UserError for anything but three octal digits.
    """
    value = text or os.environ.get(UMASK_VARIABLE) or PRIVATE
    if not re.fullmatch(r"0?[0-7]{3}", value):
        raise UserError(f"invalid umask {value!r}; use three octal digits such as 077 or 007", code="bad_config")
    os.umask(int(value, 8))
    return value[-3:]


# mounted file systems: proc(5), ``/proc/self/mountinfo`` ---------------------------------------------------

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount."""

    device: str
    """``MAJOR:MINOR``."""
    point: str
    kind: str
    """Type of the file system, e.g. ``ext4`` or ``nfs4``."""
    source: str
    """What is mounted, e.g. ``/dev/sda1`` or ``server:/export``."""


def read_mounts() -> list[Mount]:
    """Every mount, a later one over an earlier one at the same point; [] on a machine without ``/proc``."""
    try:
        lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    except OSError:  # macOS
        return []
    found = []
    for line in lines:
        fields, _, rest = line.partition(" - ")
        _, _, device, _, point, *_ = fields.split(" ")
        kind, source, *_ = [*rest.split(" "), "", ""]
        found.append(Mount(device, _unescaped(point), kind, _unescaped(source)))
    return found


def mount_of(path: Path) -> Mount | None:
    """The mount that a path is on, or will be; None where unknown."""
    mounts = {mount.point: mount for mount in read_mounts()}
    real = Path(os.path.realpath(path))
    return next((mounts[str(place)] for place in (real, *real.parents) if str(place) in mounts), None)


def _unescaped(text: str) -> str:
    """Spaces, tabs, newlines and backslashes are octal there."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


# priority: training on the same machine does not wait for a process that gives way -------------------------

LOWEST = 19


def give_way() -> None:
    """Give this process, and what it starts, the lowest priority. It cannot be raised again."""
    os.nice(LOWEST)
    if os.getsid(0) == os.getpid():  # Linux shares a CPU between sessions first: this one's own priority counts, too
        with suppress(OSError):  # a kernel without it
            Path("/proc/self/autogroup").write_text(str(LOWEST))


# secrets and other variables of every job: ``~/.grpo/.env`` ------------------------------------------------
# In the home directory because it must be found whatever the working directory and the root of a job are.


def account_file() -> Path:
    """The file of this account, which ``grpo-tui env put`` writes. Raises RuntimeError without a home directory."""
    return Path("~/.grpo/.env").expanduser()


def env_files() -> list[Path]:
    """The files that a command of the engine reads; the first that has a variable wins."""
    files = [Path(".env")]
    with suppress(RuntimeError):  # an account without a home
        files.append(account_file())
    return files
