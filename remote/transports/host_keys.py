"""Host keys: a known_hosts file of grpo-tui in OpenSSH's format, keyed by box name.

Rented boxes change addresses and addresses change owners, so entries use the name that the user gave the box.
``ssh -o HostKeyAlias=NAME -o UserKnownHostsFile=FILE`` reads the same file.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from remote.boxes import default_path
from remote.transports.machines import changed_key


class Verdict(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    OTHER_TYPE = "other type"
    """The name is known, but only with keys of other types than the one presented."""


@dataclass(frozen=True)
class Entry:
    """One line of the file."""

    line: int
    key_type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)


def fingerprint(blob: bytes) -> str:
    """``SHA256:…`` of a public key, as printed by ``ssh-keygen -l``."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


class HostKeys:
    """A known_hosts file (default: beside boxes.yaml), read again for every check so that edits take effect at once."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path else default_path().with_name("known_hosts")

    def entries(self, name: str) -> list[Entry]:
        """Keys known for a name; invalid lines are ignored."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line_number, line in enumerate(lines, start=1):
            fields = line.split()
            if len(fields) < 3 or line.lstrip().startswith(("#", "@")) or name not in fields[0].split(","):
                continue
            try:
                found.append(Entry(line_number, fields[1], base64.b64decode(fields[2], validate=True)))
            except ValueError:
                continue
        return found

    def check(self, name: str, key_type: str, blob: bytes) -> tuple[Verdict, Entry | None]:
        """Verdict on a key that ``name`` presents, and the entry it is based on."""
        known = self.entries(name)
        for entry in known:
            if entry.key_type == key_type and entry.blob == blob:
                return Verdict.KNOWN, entry
        for entry in known:
            if entry.key_type == key_type:
                return Verdict.CHANGED, entry
        return (Verdict.OTHER_TYPE, known[0]) if known else (Verdict.UNKNOWN, None)

    def add(self, name: str, key_type: str, blob: bytes) -> None:
        """Store a key."""
        from grpo_train.run_dir.files import atomic_write

        self.path.parent.mkdir(parents=True, exist_ok=True)
        old = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        old += "" if not old or old.endswith("\n") else "\n"
        atomic_write(self.path, f"{old}{name} {key_type} {base64.b64encode(blob).decode()}\n", mode=0o600)

    def refusal(self, verdict: Verdict, entry: Entry, box: str, key_type: str, blob: bytes, address: str = "") -> str:
        """Message for a refused key: the reason, and what to do. ``address``: where the box was reached."""
        where = f"{self.path} line {entry.line}"
        if verdict is Verdict.CHANGED:
            stored, presented = f"{entry.key_type} {entry.fingerprint}", f"{key_type} {fingerprint(blob)}"
            return changed_key(box, where, stored, presented, f"delete line {entry.line} of {self.path}", address)
        return (
            f"'{box}' presents a host key of a different type than the stored one: {where} has {entry.key_type} "
            f"{entry.fingerprint}, the box presents {key_type} {fingerprint(blob)}. Compare the latter with "
            f"`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the box; if it is listed, delete line {entry.line} of "
            f"{self.path} and reconnect"
        )
