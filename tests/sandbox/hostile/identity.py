"""Run a command as another user: ``python -m tests.sandbox.hostile.identity UID cmd ...``

For tests started as root, whose Python may be in a directory that only root may enter. In a new mount namespace such a
directory is replaced by an empty one with only the needed paths. Uid 0 keeps root but gets the same view. Standard
library only.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import tempfile
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def needed(repository: Path) -> list[Path]:
    """The paths that the tests read."""
    paths = [Path(sys.base_prefix), Path(sys.prefix), repository, repository.parent / "shared" / "data"]
    return [path for path in paths if path.exists()]


def closed_ancestor(path: Path) -> Path | None:
    """First directory on ``path`` that another user may not enter."""
    for directory in (*reversed(path.parents), path):
        if directory.is_dir() and not directory.stat().st_mode & stat.S_IXOTH:
            return directory
    return None


def open_a_view(paths: list[Path]) -> None:
    """Make ``paths`` accessible to all users, in this process and its children only. Raises OSError."""
    closed = {closed: [path for path in paths if closed in (path, *path.parents)]
              for path in paths if (closed := closed_ancestor(path)) is not None}  # fmt: skip
    if not closed:
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
        if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()):
            raise OSError(ctypes.get_errno(), f"mount {source} on {target}")

    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare of mounts")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    hold = tempfile.mkdtemp(prefix="grpo-view-")
    try:
        for directory, inside in closed.items():
            held = []
            for index, path in enumerate(inside):
                kept = Path(hold, str(index))
                kept.mkdir(exist_ok=True)
                mount(str(path), str(kept), "", MS_BIND | MS_REC)
                held.append((kept, path))
            mount("none", str(directory), "tmpfs", 0, "mode=755")
            for kept, path in held:
                path.mkdir(parents=True, exist_ok=True)
                mount(str(kept), str(path), "", MS_BIND | MS_REC)
                libc.umount2(str(kept).encode(), 2)
    finally:
        for entry in os.listdir(hold):
            os.rmdir(os.path.join(hold, entry))
        os.rmdir(hold)


def main() -> None:
    """Switch to the user and run the command."""
    uid, command = int(sys.argv[1]), sys.argv[2:]
    here = os.getcwd()
    if os.geteuid() == 0:
        open_a_view(needed(Path(__file__).resolve().parents[3]))
        os.chdir(here)
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
