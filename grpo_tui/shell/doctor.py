"""``grpo-tui doctor``: whether a box is ready, seen from this machine and from the box."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from grpo_tui.box.asking import ENGINE_S
from grpo_tui.box.fleet import OTHER_MACHINE, OTHER_MACHINE_HINT
from grpo_tui.box.store import SET_CLOCK, TOLERATED_S
from grpo_tui.shell.connection import ShellConnection
from grpo_tui.shell.options import config_of
from remote.base import Refused
from remote.boxes import Box
from remote.events import BoxGreeted, ClockMeasured, LinkChanged, MachineChanged
from remote.protocol import RemoteError
from remote.transports import identities
from remote.transports.choice import choose

CLOCK_S = 3.0
"""Until the box's clock has been measured; without an event it equals this machine's."""
OUTDATED = ("-sha1", "group1-", "ssh-rsa", "ssh-dss", "-cbc", "3des", "arcfour")
"""Parts of the names of algorithms that OpenSSH no longer offers."""
MARKS = {"ok": ("✔", "32"), "warning": ("▲", "33"), "error": ("✖", "31")}
EXIT_CODES = {"ok": 0, "warning": 1, "error": 2}


def doctor(box: Box, arguments: argparse.Namespace) -> int:
    """Print all findings; the exit code is that of the worst."""
    text, overrides = config_of(arguments)[1:] if arguments.cfg else ("", [])
    checks = list(examine(box, text, overrides))
    level = max((str(check["level"]) for check in checks), key=list(EXIT_CODES).index)
    if arguments.json:
        print(json.dumps({"box": box.name, "level": level, "checks": checks}, indent=1))
    else:
        for line in finding_lines(checks, in_color=sys.stdout.isatty()):
            print(line)
    return EXIT_CODES[level]


def examine(box: Box, config_text: str = "", overrides: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The findings of this machine about the link, then those of the box: name, level, detail, hint, fix, where."""
    was_known = identities.is_known(box.name)
    try:
        connection = ShellConnection(box, readonly=True)
    except RemoteError as error:
        fix = shlex.join(["grpo-tui", "--box", box.name])
        yield _here("link", "error", error.message, "the app shows what it asks for, and retries", fix)
        return
    with connection:
        yield _transport(box, connection)
        yield _algorithms(connection.event(BoxGreeted, 0.0))
        yield _machine(box, connection, was_known)
        try:
            reply = connection.request("doctor", ENGINE_S, config_text=config_text, overrides=overrides or [])
        except RemoteError as error:
            yield _here("doctor", "error", error.message, error.hint)
            return
        yield _clock(connection)
    for check in reply["checks"]:
        level = check.get("level") or ("ok" if check.get("ok") else "error")
        texts = {key: str(check.get(key) or "") for key in ("detail", "hint", "fix")}
        texts["hint"] = texts["hint"].replace("--box NAME", f"--box {shlex.quote(box.name)}")
        yield {"name": check["name"], "level": level, **texts, "where": "box"}


def _here(name: str, level: str, detail: str, hint: str = "", fix: str = "", where: str = "laptop") -> dict[str, Any]:
    return {"name": name, "level": level, "detail": detail, "hint": hint, "fix": fix, "where": where}


def _transport(box: Box, connection: ShellConnection) -> dict[str, Any]:
    link = connection.event(LinkChanged, 0.0)
    try:
        kind, reason = choose(box)
    except Refused as error:
        return _here("transport", "error", str(error))
    detail = f"{kind}: {reason}" if kind != "local" else reason
    return _here("transport", "ok", f"{detail} ({link.detail})" if link and kind != "local" else detail)


def _algorithms(greeted: BoxGreeted | None) -> dict[str, Any]:
    """What the two ends agreed on."""
    agreed = greeted.algorithms if greeted else {}
    if not agreed:
        return _here("algorithms", "ok", "none: the link does not use SSH, or shares a connection that was open before")
    detail = ", ".join(f"{key} {name}" for key, name in agreed.items())
    outdated = [name for name in agreed.values() if any(part in name for part in OUTDATED)]
    if not outdated:
        return _here("algorithms", "ok", detail)
    hint = f"{', '.join(outdated)} is outdated: upgrade the SSH server of the box"
    return _here(
        "algorithms", "warning", detail, hint, "sudo apt-get install -y --only-upgrade openssh-server", where="box"
    )


def _machine(box: Box, connection: ShellConnection, was_known: bool) -> dict[str, Any]:
    """Whether the machine is the one of the last time. ``was_known``: one had been noted before."""
    changed = connection.event(MachineChanged, 0.0)
    if changed is None:
        noted = (
            "noted now, to be compared the next time" if identities.is_known(box.name) else "the box has no machine ID"
        )
        detail = "this machine" if box.is_local else "the same as the last time" if was_known else noted
        return _here("machine", "ok", detail)
    where = f" ({changed.address})" if changed.address else ""
    return _here("machine", "warning", f"{OTHER_MACHINE}{where}", OTHER_MACHINE_HINT)


def _clock(connection: ShellConnection) -> dict[str, Any]:
    measured = connection.event(ClockMeasured, CLOCK_S)
    skew = abs(measured.skew_s) if measured else 0.0
    if skew <= TOLERATED_S:
        return _here("clock", "ok", f"within {max(1.0, skew):.0f} s of this machine's")
    detail = f"the box's clock differs from this machine's by {skew:.0f} s"
    return _here("clock", "warning", detail, "synchronize it", SET_CLOCK, where="box")


def finding_lines(checks: list[dict[str, Any]], *, in_color: bool) -> Iterator[str]:
    """The findings, one a line, each with its fix below."""
    width = max(len(check["name"]) for check in checks)
    for check in checks:
        mark, color = MARKS[check["level"]]
        shown = f"\x1b[{color}m{mark}\x1b[0m" if in_color else mark
        yield f"{shown} {check['name']:<{width}}  {check['detail']}"
        indent = " " * (width + 4)
        if check["level"] != "ok" and check["fix"]:
            yield f"{indent}{'on the box' if check['where'] == 'box' else 'here'}: {check['fix']}"
        elif check["hint"]:
            yield f"{indent}{check['hint']}"
