"""Which machine a box is: its host keys, and what this program noted of it between starts.

Rented boxes change addresses and addresses change owners, so entries use the name that the user gave the box.
``ssh -o HostKeyAlias=NAME -o UserKnownHostsFile=FILE`` reads the same file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from remote.boxes import default_path
from remote.protocol.check import NAME_LENGTH
from remote.protocol.text import clean


class Notes:
    """One file: a value per name. A disk that does not take it, or a damaged file, prevents nothing."""

    def __init__(self, file: str) -> None:
        self._name = file

    @property
    def path(self) -> Path:
        import platformdirs

        return Path(platformdirs.user_state_dir("grpo-tui")) / self._name

    def read(self) -> dict[str, Any]:
        """All values; {} without a usable file."""
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, values: dict[str, Any]) -> None:
        """Replace all values."""
        from grpo_train.run_dir.files import atomic_write

        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.path, json.dumps(values, indent=1) + "\n", mode=0o600)


_notes = Notes("machines.json")
_lock = threading.Lock()


def remember_identity(box: str, address: str, machine: str, instance: str = "") -> str:
    """Note the address, machine id and instance id of a box that has connected.

    Returns the machine id of the last time if it is another one, else "". What is not known now stays as it was.
    """
    with _lock:
        notes = _notes.read()
        before = _of(notes, box)
        found = {"address": address, "machine": machine, "instance": instance}
        now = {key: value or before[key] for key, value in found.items()}
        if now != before:
            _notes.write(notes | {box: now})
    return before["machine"] if before["machine"] and before["machine"] != now["machine"] else ""


def is_known(box: str) -> bool:
    """Whether a machine is noted for a box, so that another one is noticed."""
    return bool(_of(_notes.read(), box)["machine"])


def machine_of(hello: dict[str, Any]) -> str:
    """The machine id in an agent's hello; "" without one."""
    host = hello.get("host")
    machine = host.get("machine") if isinstance(host, dict) else ""
    return clean(machine)[:NAME_LENGTH] if isinstance(machine, str) else ""


def changed_key(box: str, place: str, stored: str, presented: str, fix: str, address: str) -> str:
    """The message of a host key that is not the stored one.

    ``place``: where the stored key is; ``fix``: how it is removed; ``address``: where the box was reached, or "".
    """
    before = _of(_notes.read(), box)["address"]
    if before and address and before != address:
        return (
            f"'{box}' is ANOTHER MACHINE than before: it was at {before}, and {address} presents another host key "
            f"({presented}; {place} has {stored}). A machine that has moved keeps its key, so this address may be "
            f"somebody else's: correct 'host' in boxes.yaml. If you rented another machine, add it under another name; "
            f"to give it this name, {fix} and reconnect"
        )
    where = f" at the same address ({address})" if before and address else ""
    return (
        f"the host key of '{box}' has CHANGED{where}: {place} has {stored}, the box presents {presented}. The box was "
        f"reinstalled, or terminated and rented again, or this is not your box. If you know why the key changed, {fix} "
        "and reconnect"
    )


def about_instance(box: str, name: str, instance: str, address: str) -> str:
    """What a provider's word about the instance of a box says about another host key than the stored one."""
    before = _of(_notes.read(), box)["instance"]
    says = f"The provider says that the instance '{name}' is at {address}"
    if not before:
        return says
    if before == instance:
        return f"{says} and the same as before: it was reinstalled, or another machine answers in its place"
    return f"{says} and another one than before ({instance}, not {before}): it was rented again, so its key is new"


def _of(notes: dict[str, Any], box: str) -> dict[str, str]:
    found = notes.get(box)
    entry = found if isinstance(found, dict) else {}
    return {
        key: value if isinstance(value := entry.get(key), str) else "" for key in ("address", "machine", "instance")
    }


@dataclass(frozen=True)
class KnownHostLine:
    """A line of a known_hosts file, under another name."""

    file: Path
    number: int
    text: str
    marked: bool
    """``@revoked`` or ``@cert-authority``."""


def renamed(file: Path, name: str, lookup: str) -> list[KnownHostLine]:
    """The lines for ``name``, with ``lookup`` instead."""
    found = []
    for number, text in enumerate(_lines(file), start=1):
        fields = text.split()
        marker = [fields.pop(0)] if fields and fields[0].startswith("@") else []
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        names = fields[0].split(",")
        if name in names or (marker and "*" in names):
            found.append(KnownHostLine(file, number, " ".join([*marker, lookup, *fields[1:3]]), bool(marker)))
    return found


def marked(files: Iterable[Path]) -> list[KnownHostLine]:
    """Every ``@revoked`` and ``@cert-authority`` line."""
    return [
        KnownHostLine(file, number, text.strip(), True)
        for file in files
        for number, text in enumerate(_lines(file), start=1)
        if text.lstrip().startswith("@")
    ]


def lookup_name(host: str, port: int, alias: str = "") -> str:
    """The name under which ssh looks up a host."""
    return alias or (host.lower() if port == 22 else f"[{host.lower()}]:{port}")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


class HostKeyState(Enum):
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

    def check(self, name: str, key_type: str, blob: bytes) -> tuple[HostKeyState, Entry | None]:
        """Verdict on a key that ``name`` presents, and the entry it is based on."""
        known = self.entries(name)
        for entry in known:
            if entry.key_type == key_type and entry.blob == blob:
                return HostKeyState.KNOWN, entry
        for entry in known:
            if entry.key_type == key_type:
                return HostKeyState.CHANGED, entry
        return (HostKeyState.OTHER_TYPE, known[0]) if known else (HostKeyState.UNKNOWN, None)

    def add(self, name: str, key_type: str, blob: bytes) -> None:
        """Store a key."""
        from grpo_train.run_dir.files import atomic_write

        self.path.parent.mkdir(parents=True, exist_ok=True)
        old = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        old += "" if not old or old.endswith("\n") else "\n"
        atomic_write(self.path, f"{old}{name} {key_type} {base64.b64encode(blob).decode()}\n", mode=0o600)

    def refusal(
        self, verdict: HostKeyState, entry: Entry, box: str, key_type: str, blob: bytes, address: str = ""
    ) -> str:
        """Message for a refused key: the reason, and what to do. ``address``: where the box was reached."""
        where = f"{self.path} line {entry.line}"
        if verdict is HostKeyState.CHANGED:
            stored, presented = f"{entry.key_type} {entry.fingerprint}", f"{key_type} {fingerprint(blob)}"
            return changed_key(box, where, stored, presented, f"delete line {entry.line} of {self.path}", address)
        return (
            f"'{box}' presents a host key of a different type than the stored one: {where} has {entry.key_type} "
            f"{entry.fingerprint}, the box presents {key_type} {fingerprint(blob)}. Compare the latter with "
            f"`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the box; if it is listed, delete line {entry.line} of "
            f"{self.path} and reconnect"
        )
