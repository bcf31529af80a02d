"""Host keys: one own known_hosts file, in OpenSSH's format, keyed by the box's name.

Rented boxes change their address and addresses change hands, so an entry stands under the name the user gave the box;
``ssh -o HostKeyAlias=NAME -o UserKnownHostsFile=FILE`` reads the same file. Nothing here needs paramiko.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Verdict(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    OTHER_TYPE = "other type"
    """The name is known, but only by keys of other types than the one shown."""


@dataclass(frozen=True)
class Entry:
    """One line of the file."""

    line: int
    name: str
    key_type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)


def fingerprint(blob: bytes) -> str:
    """``SHA256:…`` of a public key's bytes, as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def default_path() -> Path:
    """``known_hosts`` in the platform's configuration directory."""
    import platformdirs

    return Path(platformdirs.user_config_dir("grpo-tui")) / "known_hosts"


class HostKeys:
    """The file; read anew on every question, so that an edit takes effect at once."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path else default_path()

    def entries(self, name: str) -> list[Entry]:
        """The keys known for a name; lines that are no entries are passed over."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if len(fields) < 3 or line.lstrip().startswith(("#", "@")) or name not in fields[0].split(","):
                continue
            try:
                found.append(Entry(number, name, fields[1], base64.b64decode(fields[2], validate=True)))
            except ValueError:
                continue
        return found

    def check(self, name: str, key_type: str, blob: bytes) -> tuple[Verdict, Entry | None]:
        """What to think of a key that ``name`` shows, and the entry that says so."""
        known = self.entries(name)
        for entry in known:
            if entry.key_type == key_type and entry.blob == blob:
                return Verdict.KNOWN, entry
        for entry in known:
            if entry.key_type == key_type:
                return Verdict.CHANGED, entry
        return (Verdict.OTHER_TYPE, known[0]) if known else (Verdict.UNKNOWN, None)

    def add(self, name: str, key_type: str, blob: bytes) -> None:
        """Remember a key."""
        from grpo_train.run_dir.files import atomic_write

        self.path.parent.mkdir(parents=True, exist_ok=True)
        old = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        old += "" if not old or old.endswith("\n") else "\n"
        atomic_write(self.path, f"{old}{name} {key_type} {base64.b64encode(blob).decode()}\n", mode=0o600)

    def complaint(self, verdict: Verdict, entry: Entry, box: str, key_type: str, blob: bytes) -> str:
        """Why the connection stops here, and the way out."""
        where = f"{self.path} line {entry.line}"
        if verdict is Verdict.CHANGED:
            return (
                f"the host key of '{box}' has CHANGED: {where} has {entry.key_type} {entry.fingerprint}, the box shows "
                f"{key_type} {fingerprint(blob)}. Either the box was reinstalled, or this is not your box. If you know "
                f"why it changed, delete line {entry.line} of {self.path} and connect again"
            )
        return (
            f"'{box}' shows a host key of another type than the one known: {where} has {entry.key_type} "
            f"{entry.fingerprint}, the box shows {key_type} {fingerprint(blob)}. Compare the latter with "
            f"`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the box; if it is there, delete line {entry.line} of "
            f"{self.path} and connect again"
        )
