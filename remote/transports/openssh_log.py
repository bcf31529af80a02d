"""What a failed ssh meant, from its own log (``-E``), which nothing but ssh writes to.

Only ssh's report of a whole answer is a refusal (see :mod:`remote`). A host key is compared before its signature is
verified, so a damaged byte can look like another key: such an end is a refusal once a second connection ends alike.
"""

from __future__ import annotations

import re
from collections import deque

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, Unreachable
from remote.transports.machines import changed_key
from remote.transports.openssh_setup import BoxSsh
from remote.transports.transport import MIB, Allowance

KEPT = 400
LONGEST = 2_000
"""Bytes of a line."""
SIGNALS = ("ext-info-", "kex-strict-")
"""Names in a list of algorithms that are none."""
_NOISE = re.compile(r"^(debug\d:|Transferred: |Bytes per second: |Authenticated to |Warning: Permanently added|@)")
_OPTIONS = {
    "key exchange method": "kexalgorithms",
    "host key type": "hostkeyalgorithms",
    "cipher": "ciphers",
    "MAC": "macs",
}
"""What ssh found no match for, and the option that lists its own."""
_AGREED = {"algorithm": "kex", "host key algorithm": "host_key", "client->server cipher": "cipher"}
_UNKNOWN_KEY = re.compile(r"^No (\S+) host key is known for (.+?)( and you have .*)?\.?$", re.MULTILINE)
_PROBLEM = re.compile(r"Load key|Identity file|Certificate|sign_and_send")


class Log:
    """The lines of ssh's log, the newest ones."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT)
        self.address = ""
        self.authenticated = False
        self.exit_status: int | None = None
        """The remote command's, once it was received."""
        self.key_type = self.fingerprint = ""
        """Of the host key."""
        self.algorithms: dict[str, str] = {}
        """``kex``, ``host_key`` and ``cipher``; empty over a connection that was open before."""
        self.offered: list[str] = []
        """Keys that were offered to the box."""
        self._rest = b""
        self._allowance = Allowance("the box floods the log of ssh", MIB, MIB // 16, clock)

    def add(self, data: bytes) -> None:
        """Append output. Raises Flood: a server can make ssh log its messages."""
        self._allowance.spend(len(data))
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST:]
        for line in lines:
            self._add(line[:LONGEST].decode(errors="replace").rstrip("\r"))

    def _add(self, line: str) -> None:
        self.lines.append(line)
        if found := re.match(r"debug1: Connecting to \S+ \[(.+)\] port \d+", line):
            self.address = found[1]
        elif line.startswith("Authenticated to ") or line.startswith("debug1: Entering interactive session"):
            self.authenticated = True
        elif found := re.match(r"debug1: Server host key: (\S+) (\S+)", line):
            self.key_type, self.fingerprint = found[1], found[2]
        elif found := re.match(r"debug1: kex: (algorithm|host key algorithm|client->server cipher): (\S+)", line):
            self.algorithms[_AGREED[found[1]]] = found[2]
        elif found := re.match(r"debug1: Exit status (\d+)$", line):
            self.exit_status = int(found[1])
        elif found := re.match(r"debug1: Offering public key: (.*)", line):
            self.offered.append(re.sub(r" (explicit|agent)+$", "", found[1]))

    def words(self) -> list[str]:
        """What ssh says to a person."""
        return [line for line in self.lines if line.strip() and not _NOISE.match(line)]


def failure(ssh: BoxSsh, log: Log, errors: str, where: str) -> Refused | Unreachable:
    """Why ssh ended before the box ran a command. ``errors``: standard error, where jump hosts write."""
    proxied = not log.authenticated and bool(
        ssh.configuration.one("proxyjump") or ssh.configuration.one("proxycommand")
    )
    words = log.words()
    text = "\n".join([*words, *(errors.splitlines() if proxied else [])])
    last = (text.strip().splitlines() or [f"{where}: the connection ended"])[-1]
    if proxied and errors.strip() and "UNKNOWN port" in last:
        last = errors.strip().splitlines()[-1]
    if unread := _unread_key(ssh, text):
        return Unreachable(unread)
    if found := _host_key(ssh, log, text, where):
        return Unreachable(f"{where} presented a host key that is not the stored one; comparing again", found)
    if "Unable to negotiate with" in text:
        return _no_algorithm(ssh, text, where)
    if found_line := re.search(r"^(\S+): Permission denied \((.*)\)\.?$", text, re.MULTILINE):
        return Refused(_login_refused(ssh, log, text, found_line[1], found_line[2], by_jump_host=proxied))
    if "Too many authentication failures" in text:
        return Refused(_login_refused(ssh, log, text, where, "too many authentication failures"))
    return Unreachable(f"{where}: {last}" if where not in last else last)


def _unread_key(ssh: BoxSsh, text: str) -> str:
    """What ssh was given, where it says that it knows no key of a box whose key is stored; otherwise "".

    A key of another type than the stored one has ``Offending`` in the report.
    """
    unknown = _UNKNOWN_KEY.search(text)
    if unknown is None or "Offending" in text or not ssh.knows_box or unknown[2] in ssh.hop_lookups:
        return ""
    file = ssh.folder / "target"
    try:
        names = [line.split()[0] for line in file.read_text().splitlines()]
        given = f"{file} has keys of {', '.join(names) or 'no host'}"
    except OSError as error:
        given = f"{file}: {error.strerror}"
    return f"ssh did not find the stored key of '{ssh.box.name}' under {unknown[2]} ({given}); connecting again"


def _no_algorithm(ssh: BoxSsh, text: str, where: str) -> Unreachable:
    """Once, it may be a damaged byte."""
    line = next(line for line in text.splitlines() if "Unable to negotiate with" in line)
    offers = line
    if (found := re.search(r"no matching (.+) found\. Their offer: (\S+)", line)) and found[1] in _OPTIONS:
        theirs = [name for name in found[2].split(",") if not name.startswith(SIGNALS)]
        ours = ssh.configuration.one(_OPTIONS[found[1]]).split(",")
        offers = f"{found[1]}: the box offers {', '.join(theirs)}; ssh offers {', '.join(ours)}"
    return Unreachable(line, Refused(f"{where} and ssh have no SSH algorithm in common. {offers}", "algorithms"))


def _host_key(ssh: BoxSsh, log: Log, text: str, where: str) -> Refused | None:
    """The refusal of a host key."""
    box = ssh.box.name
    if "REVOKED HOST KEY" in text or re.search(r"host key .* (is marked as )?revoked", text, re.IGNORECASE):
        place = ssh.revoked_in(log.fingerprint)
        return Refused(f"the host key of '{box}' is REVOKED: {log.fingerprint} ({place or where})", "host_key")
    if "IDENTIFICATION HAS CHANGED" in text or "Offending" in text:
        found = re.search(r"^Offending (\S+) key in (.+):(\d+)$", text, re.MULTILINE)
        shown = re.search(r"^(SHA256:\S+?)\.?$", text, re.MULTILINE)
        presented = f"the box presents {log.key_type} {shown[1] if shown else log.fingerprint}"
        if found is None:
            return Refused(f"the host key of '{box}' has CHANGED: {presented}", "host_key")
        file, number = ssh.origin(found[2], int(found[3]))
        place = f"{file} line {number}" if number else str(file)
        if found[1].lower() not in log.key_type:
            return Refused(
                f"'{box}' presents a host key of a different type than the stored one: {place} has a {found[1]} key, "
                f"{presented}. Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the box; if it is "
                "listed, delete that line and reconnect",
                "host_key",
            )
        shows = presented.removeprefix("the box presents ")
        stored, fix = f"another {found[1]} key", f"delete line {number} of {file}" if number else "delete that line"
        return Refused(changed_key(box, place, stored, shows, fix, log.address), "host_key")
    if unknown := _UNKNOWN_KEY.search(text):
        return Refused(
            f"the host key of {unknown[2]} is not known, and 'StrictHostKeyChecking yes' is set: "
            f"{unknown[1]} {log.fingerprint}",
            "host_key",
        )
    return None


def _login_refused(ssh: BoxSsh, log: Log, text: str, login: str, methods: str, by_jump_host: bool = False) -> str:
    if by_jump_host and not log.offered:
        return f"a jump host refused the login of {login} ({methods}); `ssh {ssh.box.host}` must work on this machine"
    tried = f"Keys offered: {'; '.join(log.offered)}. " if log.offered else "No key was offered. "
    problems = [line for line in text.splitlines() if _PROBLEM.match(line)]
    if "UNPROTECTED PRIVATE KEY" in text:
        problems.append("other users can read the key file: chmod 600")
    more = f"{'; '.join(dict.fromkeys(problems))}. " if problems else ""
    return (
        f"{login} refused the login ({methods}). {tried}{more}Correct 'user' or 'key' of '{ssh.box.name}' in "
        "boxes.yaml, or add the public key to ~/.ssh/authorized_keys on the box"
    )
