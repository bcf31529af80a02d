"""Which machine a box was the last time, and what it means that another one answers now."""

from __future__ import annotations

import threading
from typing import Any

from remote.protocol.fields import NAME_LENGTH
from remote.protocol.text import clean
from remote.transports.notes import Notes

_notes = Notes("machines.json")
_lock = threading.Lock()


def remember(box: str, address: str, machine: str, instance: str = "") -> str:
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
