"""Commands at work on the backups of a run: what they do, how far they are, and their tmux sessions. No Textual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from grpo_train.run_dir.sessions import session_name
from grpo_tui.model.formatting import byte_size, one_line, percent, short_duration, shortened

PARTLY = 3
"""Exit status of a command that left something out."""
TEXT_WIDTH = 20
NAME_IN_TOAST = 40
"""Maximum cells of a run's name in the title of a notification."""
WORK = {
    "backup": "being backed up",
    "restore": "being restored",
    "archive": "being archived",
    "cleanup": "being cleaned up",
    "verify": "being read back from its backup",
    "prune": "having its backups pruned",
}
"""What each command does to a run. Its session is COMMAND_RUN."""
_DONE = {
    "backup": ("{run} backed up", "every byte is proven to be in the store"),
    "restore": ("{run} restored", "every byte was hashed"),
    "archive": ("{run} archived", "the backup was read back first"),
    "cleanup": ("{run} cleaned up", "each removed checkpoint was read back from the backup first"),
    "verify": ("backup of {run} read back", "every object is as it was sent"),
}
_IN_PART = {
    "backup": "{run} backed up in part",
    "restore": "{run} restored in part",
    "archive": "{run} archived in part",
    "cleanup": "{run} cleaned up in part",
    "verify": "backup of {run} is damaged",
}


class Transfer(NamedTuple):
    """Progress of a command at work on the backups of a run, or of one that failed."""

    command: str
    phase: str
    destination: str
    what: str
    """The file at hand."""
    bytes: float
    bytes_total: float
    proven: float
    seconds: float
    rate: float
    """Bytes per second of late; 0 = not known."""
    error: str
    again: str
    """The command that continues, for a shell on the box."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Transfer:
        """From a row that passed the gate, see :class:`remote.protocol.run_rows.Transfer`."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def has_failed(self) -> bool:
        return self.phase == "failed"

    @property
    def moved(self) -> float:
        """Bytes of ``bytes_total`` that the present phase is done with."""
        return self.proven if self.phase == "proving" else self.bytes

    @property
    def share(self) -> float | None:
        """Of the present phase, from 0 to 1; None while that is not known."""
        moves = self.phase in ("sending", "reading", "proving") and self.bytes_total > 0
        return min(1.0, self.moved / self.bytes_total) if moves else None

    @property
    def pace(self) -> float:
        """Bytes per second; 0 = not known."""
        if self.rate or self.phase == "proving":
            return self.rate
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the present phase is done."""
        return max(0.0, self.bytes_total - self.moved) / self.pace if self.pace else None


def transfer_label(transfer: Transfer) -> str:
    """``↑ 42% 12 MB/s 3m``: how much is done, bytes per second, time left; else what it is doing."""
    if transfer.has_failed:
        return f"✖ {transfer.command} failed"[:TEXT_WIDTH]
    if transfer.share is None:
        return f"↑ {transfer.command} {transfer.phase}".rstrip()[:TEXT_WIDTH]
    if transfer.phase == "proving":
        return f"↑ proving {percent(transfer.share, '')}"
    label = f"{'↑' if transfer.phase == 'sending' else '↓'} {percent(transfer.share, '')}"
    return f"{label} {byte_size(transfer.pace)}/s {short_duration(transfer.left_s)}" if transfer.pace else label


def transfer_lines(transfer: Transfer, width: int) -> list[str]:
    """One or two lines of ``width`` cells: how far it is, and what is at hand; of a failed one, how to continue.

    ``sending 42% · 12 MB/s · 8m left``, ``4.2 GB of 10 GB to s3 · step_40/optimizer.pt``.
    """
    if transfer.has_failed:
        lines = [one_line(f"failed: {transfer.error}"), f"continue: {transfer.again}" if transfer.again else ""]
        return [line for line in lines if line]
    share, left_s = transfer.share, transfer.left_s
    parts, size = [transfer.phase], ""
    if share is not None:
        parts[0] += f" {percent(share, '')}"
        size = f"{byte_size(transfer.moved)} of {byte_size(transfer.bytes_total)} "
        if left_s is not None:
            parts += [f"{byte_size(transfer.pace)}/s", f"{short_duration(left_s)} left"]
    reads = transfer.phase == "reading" or transfer.command in ("restore", "verify")
    place = f"{size}{'from' if reads else 'to'} {transfer.destination}" if transfer.destination else size.rstrip()
    file = "/".join(one_line(transfer.what).split("/")[-2:])  # of a key, the run is known
    below = [place, shortened(file, max(9, width - len(place) - 3))]
    return [" · ".join(parts), *filter(None, [" · ".join(filter(None, below))])]


def command_of(session: str, run: str) -> str:
    """Which command on a run's backups a tmux session is for; "" for another session."""
    return next((command for command in WORK if session == session_name(f"{command}_{run}")), "")


def work_on(sessions: Iterable[str], run: str, transfer: Transfer | None) -> str:
    """What is being done to the backups of a run, such as ``being backed up``; "" for nothing."""
    commands = [command for session in sessions if (command := command_of(session, run))]
    if transfer is not None and not transfer.has_failed:
        commands.append(transfer.command)
    return next((WORK[command] for command in commands if command in WORK), "")


def done_notice(command: str, run: str) -> tuple[str, str]:
    """Title and message for a command that succeeded."""
    title, message = _DONE.get(command, (f"{command} of {{run}} done", ""))
    return f"✔ {title.format(run=shortened(run, NAME_IN_TOAST))}", message


def failure_title(command: str, run: str, code: int) -> str:
    """Title for a command that did not succeed, or left something out."""
    name = shortened(run, NAME_IN_TOAST)
    if code == PARTLY and command in _IN_PART:
        return f"▲ {_IN_PART[command].format(run=name)}"
    return f"✖ {command} of {name} failed"
