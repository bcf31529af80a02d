"""Bringing the code of this machine to a box; see :mod:`remote.protocol.code` for the lines.

    with Copier(box) as copier:
        sync(copier, with_changes=False)

git's own transport is not used: over the link, code arrives wherever the app does (paramiko, passphrases, jump hosts),
without a second login, and a sync that was cut continues.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_train.run_dir.code import Code
from remote.checkout import Checkout, find_checkout, require_clean, write_bundle, write_patch
from remote.copying import Copier
from remote.gate import message
from remote.protocol import ProtocolError
from remote.protocol.code import BUNDLE, CLONE, PATCH
from remote.protocol.copied_files import item_of, send_files
from remote.protocol.copies import Wire, put_items, take_begun


@dataclass(frozen=True)
class Synced:
    """What a sync did."""

    commit: str
    patch: str
    """SHA-256 of the changes that came along; "" = none."""
    subject: str
    """First line of the commit's message; "" for a pull."""
    path: str
    """The checkout on the box."""
    size: int
    """Bytes that were sent."""
    needs_setup: bool
    """Whether the engine's environment has to be set up (again)."""

    left_out: list[str]
    """What of the checkout did not travel, each with its reason."""

    @property
    def code(self) -> Code:
        return Code(self.commit, self.patch)


def sync(copier: Copier, *, with_changes: bool, start: Path | None = None) -> Synced:
    """Bring HEAD of the checkout around ``start`` to the box; with ``code: clone``, pull there. Raises UserError.

    What does not travel is named before.
    """
    if copier.box.code == CLONE:
        return copier.over_connections(_pull)
    checkout = find_checkout(start)
    if not with_changes:
        require_clean(checkout)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        code, left_out = write_patch(checkout, folder / PATCH)
        copier.say_left_out(left_out)
        synced = copier.over_connections(lambda wire: _sync(copier, wire, checkout, code, folder))
    return replace(synced, left_out=left_out)


def _pull(wire: Wire) -> Synced:
    wire.put(op="code")
    reply = wire.take()
    code = Code.from_json(reply)
    if code is None:
        raise ProtocolError("a malformed answer to a sync")
    return Synced(code.commit, "", "", message(str(reply.get("path"))), 0, False, [])


def _sync(copier: Copier, wire: Wire, checkout: Checkout, code: Code, folder: Path) -> Synced:
    wire.put(op="code")
    known = wire.take().get("known")
    if not isinstance(known, list):
        raise ProtocolError("a malformed answer to a sync")
    commits = [commit for commit in map(str, known) if Code.from_json({"commit": commit})]
    files = [PATCH] if code.patch else []
    if write_bundle(checkout, commits, folder / BUNDLE):
        files.append(BUNDLE)
    items = [item for name in files if (item := item_of(folder / name, name))]
    wire.put(**code.to_json())
    put_items(wire, items)
    copier.tally.begin(items)
    send_files(wire, [(item, folder / item.path) for item in items], take_begun(wire), copier.tally)
    reply = wire.take()
    return Synced(
        code.commit, code.patch, checkout.subject, message(str(reply.get("path"))), copier.tally.travelled,
        bool(reply.get("needs_setup")), [],
    )  # fmt: skip
