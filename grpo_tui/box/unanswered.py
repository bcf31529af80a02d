"""Requests that change a box, kept on this machine until they are answered. No Textual.

The link may break, or this program may be killed, between a request and its answer. Each request therefore has an
idempotency key and is kept in a file (0600, it holds the config's text) until the box answers. Once the box is
connected again, it is asked what became of the request: a launch that it has not received is launched then; the others
are not carried out later, when the user no longer expects it.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import platform
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.files import atomic_write
from remote.boxes import Box
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.box.link import Connection

OUTCOMES = {
    "launch": "{run} launched",
    "resume": "{run} resumed",
    "evaluate": "evaluation of {run} started",
    "back_up": "backup of {run} started",
    "back_up_all": "backup of {run} started",
    "restore": "restore of {run} started",
    "archive": "archive of {run} started",
    "clean_up": "cleanup of {run} started",
    "verify_backup": "verification of the backup of {run} started",
    "stop": "{run}: stop requested",
    "kill": "{run} killed",
    "note": "note on {run} saved",
    "set_up": "setup of the engine started",
    "open_tensorboard": "TensorBoard of {run} started",
    "open_shell": "a shell was opened",
    "send_line": "line sent to {run}",
}
"""What is said of a request whose answer had been lost. Those of the Ask screen are missing: they end with it."""


@dataclass(frozen=True)
class Unanswered:
    """One request."""

    key: str
    op: str
    params: dict[str, Any]
    box: str
    address: str
    root: str
    time: float

    @property
    def target(self) -> str:
        return str(self.params.get("run") or self.params.get("run_name") or self.params.get("session") or "a run")


class UnansweredRequests:
    """A file per request in the state directory of this machine. A disk that takes none does not prevent a request."""

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self.in_flight: set[str] = set()
        """Keys that this program waits for."""

    @property
    def folder(self) -> Path:
        if self._given is not None:
            return self._given
        import platformdirs

        return Path(platformdirs.user_state_dir("grpo-tui")) / "unanswered"

    def keep(self, box: Box, op: str, params: dict[str, Any]) -> None:
        key = str(params["idempotency_key"])
        request = Unanswered(key, op, params, box.name, box.address(), box.root, time.time())
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_write(self.folder / f"{key}.json", json.dumps(asdict(request)), mode=0o600)

    def forget(self, key: str) -> None:
        with suppress(OSError):
            (self.folder / f"{key}.json").unlink(missing_ok=True)

    def of(self, box: Box) -> list[Unanswered]:
        """Requests to this box that nobody waits for, oldest first."""
        found = []
        for file in self.folder.glob("*.json") if self.folder.is_dir() else ():
            try:
                request = Unanswered(**json.loads(file.read_text(encoding="utf-8")))
                same_box = (request.box, request.address, request.root) == (box.name, box.address(), box.root)
                known = isinstance(request.params, dict) and request.op in OUTCOMES and request.key == file.stem
                if known and same_box and request.key not in self.in_flight:
                    found.append(request)
            except (OSError, ValueError, TypeError):
                continue  # damaged, or of another version
        return sorted(found, key=lambda request: request.time)

    async def request(self, connection: Connection, op: str, reply_s: float, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request that changes something, kept until it is answered. Raises RemoteError.

        Its code ``timeout`` means that the box may have the request.
        """
        key = params.setdefault("idempotency_key", secrets.token_hex(12))
        if op not in OUTCOMES:
            return await asyncio.wrap_future(connection.request(op, reply_s, **params))
        self.keep(connection.box, op, params)
        self.in_flight.add(key)
        try:
            reply = await asyncio.wrap_future(connection.request(op, reply_s, **params))
        except RemoteError as error:
            if error.code == "timeout":
                message = f"the link broke before the box answered the {op}"
                raise RemoteError(error.code, message, "what happened is shown once the link is back") from error
            self.forget(key)
            raise
        finally:
            self.in_flight.discard(key)
        self.forget(key)
        return reply


def requester() -> str:
    """User and host of this program, for the run's records."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):
        return platform.node()
