"""The box's end of ``grpo-tui sync``; see :mod:`remote.protocol.code` for the lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from grpo_train.run_dir import sha256
from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.code import Code
from grpo_train.run_dir.files import remove_tree
from remote.agent import code as codes
from remote.agent.context import BoxContext
from remote.agent.staging import staging_alone
from remote.protocol import ProtocolError, RemoteError
from remote.protocol.code import BUNDLE, CLONE, PATCH
from remote.protocol.copied_files import check_room, put_begun, receive_files, remove_others
from remote.protocol.copies import WORKING_S, CopyInterrupted, CopyStream, take_items

MAX_PATCH = 64 << 20


def take_code(wire: CopyStream, box: BoxContext) -> None:
    """Take commits and changes from the client, or pull. Raises RemoteError."""
    if box.settings.readonly:
        message = "'sync' is refused: this agent was started with --readonly"
        raise RemoteError("read_only", message, "leave out --readonly")
    if box.settings.code == CLONE:
        with _alive(wire, box.clock):
            pulled = codes.pull(box)
        wire.put(path=str(box.repo), **pulled.to_json())
        return
    with _alive(wire, box.clock):
        place, known = codes.require_sync(box), codes.known_commits()
    wire.put(known=known)
    code = Code.from_json(wire.take())
    if code is None:
        raise ProtocolError("a malformed commit")
    items = take_items(wire)
    if any(item.path not in (BUNDLE, PATCH) or item.link for item in items):
        raise ProtocolError("an unexpected file in a sync")
    if any(item.path == PATCH and item.size > MAX_PATCH for item in items):
        raise RemoteError("too_large", f"the changes are larger than {MAX_PATCH >> 20} MiB", "commit them")
    staging = codes.folder() / "incoming" / code.folder

    def make() -> None:
        staging.mkdir(mode=0o700, parents=True, exist_ok=True)

    with staging_alone(wire, staging, make, "sync of this commit", box.clock):
        check_room(staging, items)
        remove_others(staging, items)
        put_begun(wire, staging, items)
        receive_files(wire, staging, items, lambda item, count: None)
        names = {item.path for item in items}
        bundle, patch = (staging / name if name in names else None for name in (BUNDLE, PATCH))
        if patch is not None and sha256(patch) != code.patch:
            raise ProtocolError("the changes are not the ones that were announced")
        with _alive(wire, box.clock):
            needs_setup = codes.accept(place, code, bundle, patch)
        remove_tree(staging)
    wire.put(path=str(place), needs_setup=needs_setup)


@contextmanager
def _alive(wire: CopyStream, clock: Clock) -> Iterator[None]:
    """Say that this end is alive while git works."""
    done = threading.Event()

    def say() -> None:
        with suppress(CopyInterrupted):  # the next line finds that out, too
            while not clock.wait(done, WORKING_S):
                wire.working()

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
