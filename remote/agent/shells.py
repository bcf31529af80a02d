"""tmux sessions as terminals: a new shell, and a line typed into a session."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from grpo_train.run_dir.credentials import find_secret
from remote.agent.context import BoxContext
from remote.agent.once import Record
from remote.agent.sessions import Sessions
from remote.protocol import RemoteError
from remote.protocol.shells import OpenShellReply, OpenShellRequest, SendLineReply, SendLineRequest

SHELL_SESSION = "shell"


def open_shell(box: BoxContext, request: OpenShellRequest, record: Record) -> OpenShellReply:
    """Open a session named ``shell``, ``shell_2`` …, which ends with its shell. Raises RemoteError."""
    sessions = Sessions(box)
    sessions.require()
    if record.key and (row := sessions.with_key(record.key)) is not None:
        return {"session": row["name"]}
    taken = {row["name"] for row in sessions.rows()}
    name = next(name for name in map(_name, count(1)) if name not in taken)
    record.begin()
    folder = box.repo if box.repo is not None and box.repo.is_dir() else Path.home()
    sessions.start(name, [], folder, box, key=record.key)
    return {"session": name}


def _name(number: int) -> str:
    return SHELL_SESSION if number == 1 else f"{SHELL_SESSION}_{number}"


def send_line(box: BoxContext, request: SendLineRequest, record: Record) -> SendLineReply:
    """Type a line and Enter into a session.

    Raises RemoteError: ``no_session``; ``secret`` for a line that holds one, as other accounts of the box could read
    it in tmux's arguments; ``not_known`` where an agent was killed while it typed.
    """
    if record.found is not None:
        message = f"the agent was ended while it typed into '{request.session}': the line may have arrived"
        raise RemoteError("not_known", message, "look at the session before you send it again")
    if find_secret(request.line):
        message = "the line seems to hold a secret, which every account of the box could read in the process list"
        raise RemoteError("secret", message, "attach to the session and type it there")
    sessions = Sessions(box)
    row = sessions.require_live(request.session)
    record.begin()
    sessions.type_line(row, request.line)
    return {"session": row["name"]}
