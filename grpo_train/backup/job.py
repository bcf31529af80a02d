"""A command at work on a run: its lock, what it announces as read, and its progress.

``ROOT/transfers/KIND.NAME/`` holds ``status.json``, as an evaluation's: its writer, ``command``, ``argv`` (which
continues it after a failure), and in ``pending`` the checkpoints that must not be removed
(:func:`grpo_train.run_dir.keeping.paths_in_use`); and ``progress.jsonl``, a new file for each command, with a
:class:`Progress` a line.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from grpo_train.run_dir import RunDirError, StatusWriter
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError, code_of
from grpo_train.run_dir.files import append_jsonl, read_json
from grpo_train.run_dir.root import make_like
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES

FOLDER = "transfers"
STATUS, PROGRESS = "status.json", "progress.jsonl"
INTERVAL_S = 1.0
NAMES = {"verify": "verify-backup", "prune": "prune-backups"}
"""Commands that a user knows under another name."""
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Progress:
    """State of a command."""

    command: str
    """``backup``, ``restore``, ``verify``, ``cleanup``, ``archive``, ``prune`` or ``fetch``."""
    phase: str = "starting"
    """``starting``, ``listing``, ``sending``, ``proving``, ``reading``, ``deleting``, ``done`` or ``failed``."""
    run: str = ""
    """``KIND/NAME``."""
    destination: str = ""
    what: str = ""
    """The file or checkpoint at hand."""
    bytes: int = 0
    """Sent or read so far."""
    bytes_total: int = 0
    proven: int = 0
    """Bytes proven to be in the store."""
    files: int = 0
    files_total: int = 0
    seconds: float = 0.0
    """Since the command started, by a monotonic clock."""
    error: str = ""


OnProgress = Callable[[Progress], None]


class CommandProgress:
    """Progress of one command, from several threads."""

    def __init__(
        self,
        start: Progress,
        folder: Path | None,
        status: StatusWriter | None,
        show: OnProgress | None,
        clock: Clock = CLOCK,
    ) -> None:
        self._now = start
        self._folder, self._status, self._show = folder, status, show
        self._lock = threading.Lock()
        self._clock = clock
        self._began = clock.monotonic()
        self._written = self._began - INTERVAL_S

    @property
    def now(self) -> Progress:
        return self._now

    def announce(self, paths: Iterable[str]) -> None:
        """Name what is read, relative to the root, before it is read."""
        if self._status:
            _update(self._status, pending=list(paths))

    def update(self, **changes: object) -> None:
        """Change fields, and write the progress at once."""
        with self._lock:
            self._now = replace(self._now, **changes)  # type: ignore[arg-type]
            self._write()

    def add(self, *, moved: int = 0, proven: int = 0, files: int = 0, what: str = "") -> None:
        """Count bytes and files; written at most once a second."""
        with self._lock:
            now = self._now
            self._now = replace(
                now, bytes=now.bytes + moved, proven=now.proven + proven, files=now.files + files, what=what or now.what
            )
            if self._clock.monotonic() - self._written >= INTERVAL_S:
                self._write()

    def _write(self) -> None:
        self._written = self._clock.monotonic()
        self._now = replace(self._now, seconds=round(self._written - self._began, 3))
        if self._show:
            self._show(self._now)
        if self._folder:
            with suppress(OSError):  # a full disk must not end a backup
                append_jsonl(self._folder / PROGRESS, asdict(self._now))

    def end(self, error: BaseException | None) -> None:
        changes = {"phase": "failed", "error": f"{error}" or type(error).__name__} if error else {"phase": "done"}
        self.update(**changes)
        if self._status:
            ended = {"state": "crashed", "error_code": code_of(error)} if error else {"state": "finished"}
            _update(self._status, pending=[], **ended)
            self._status.close()


@contextmanager
def working_on(
    root: Path,
    kind: str,
    name: str,
    command: str,
    destination: str = "",
    show: OnProgress | None = None,
    clock: Clock = CLOCK,
) -> Iterator[CommandProgress]:
    """Hold the lock of a run while a command works on it.

    A root that cannot be written gets neither lock nor announcement: nothing prunes there. Raises RunDirError
    (``busy``) naming the command that is first.
    """
    start = Progress(command, run=f"{kind}/{name}", destination=destination)
    folder: Path | None = root / FOLDER / f"{kind.replace('/', '.')}.{name}"
    status: StatusWriter | None = None
    assert folder is not None
    try:
        root.mkdir(parents=True, exist_ok=True)
        make_like(root / FOLDER, root)  # other accounts back up, too
        folder.mkdir(exist_ok=True)
        status = StatusWriter(folder)
        status.fields.pop("error_code", None)
        argv = ["grpo-train", *sys.argv[1:]]
        _update(status, state="running", command=command, argv=argv, run=start.run, destination=destination, pending=[])
        (folder / PROGRESS).unlink(missing_ok=True)
    except RunDirError as error:
        raise _busy(folder, name) from error
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        folder = None
    job = CommandProgress(start, folder, status, show, clock)
    try:
        yield job
    except BaseException as error:
        job.end(error)
        raise
    job.end(None)


def _update(status: StatusWriter, **fields: object) -> None:
    """Write a status. On a full disk a backup continues without one and reports what was removed while it was read."""
    try:
        status.update(**fields)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise


def _busy(folder: Path, name: str) -> UserError:
    row = read_json(folder / STATUS, MAX_RUN_FILE_BYTES) or {}
    command = str(row.get("command", "backup"))
    who = f"grpo-train {NAMES.get(command, command)} (pid {row.get('pid', '?')} on {row.get('host', '?')})"
    return RunDirError(f"{name}: {who} is at work on it; rerun this command when that has ended", code="busy")
