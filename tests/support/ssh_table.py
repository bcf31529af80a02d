"""docs/ssh.md, printed from what ssh and both transports do.

python -m tests.support.ssh_table > docs/ssh.md
"""

from __future__ import annotations

import re
import sys

from tests.support.ssh_case import Case
from tests.support.ssh_cases import CASES
from tests.support.ssh_lab import Outcome, lab

HEAD = """# SSH

`transport: auto` (the default in boxes.yaml) is this machine's `ssh`, if it is OpenSSH 8.5 or newer. The app then
reaches a box exactly when `ssh NAME` does: your configuration, keys, agent, known_hosts, jump hosts and control masters
count. `auto` falls back to paramiko on Windows and without a usable `ssh`. `transport: openssh` and
`transport: paramiko` choose one. The list of boxes (`b`) shows which one a box gets, and why.

Where `ssh` and a box have no algorithm in common, twice in a row, `auto` connects over paramiko and keeps to it for 30
days (attaching still needs `ssh`). paramiko is not tried if your configuration chooses algorithms, sets
`StrictHostKeyChecking yes` or has a jump host, or if your known_hosts has the box's key: paramiko reads none of these.

- **One login.** One `ssh` process per box carries the link, and attaching to a session goes over its connection. A
  control master of yours is used if it is running. Nothing stays behind when the app ends.
- **Options that the app sets:** `RemoteCommand none`, `RequestTTY no`, `ServerAliveInterval 5`, `UpdateHostKeys no`,
  `HashKnownHosts no`, no forwarding of any kind; unless you set them, `ConnectTimeout 10` and AES-GCM as the first of
  the `Ciphers`, with which copies take a quarter less time. With `key:` in boxes.yaml, `IdentitiesOnly yes`; jump hosts
  get your own keys and agent.
- **Host keys.** First the app's own known_hosts (beside boxes.yaml), by the name of the box; then yours, by alias, host
  and port. A key known in either is not asked for. Another key is refused with file and line, and so is a key that any
  file revokes. A new key is stored in the app's file after you accept it, even with `StrictHostKeyChecking no`, and
  however the host is spelled (`user@host`, `ssh://user@host:port`); a control master with that option is not used.
- **Questions** (passphrase, password, code, PIN) appear in the app and never on the terminal. `ssh` does not tell
  whether an answer may be shown, so it never is. A passphrase is kept in memory until the app ends; other answers are
  not kept. A login that needs a person is tried once per outage, then waits for you.

Each row below is a real server and a real configuration, on Linux with OpenSSH 9.2: `yes` means that commands run on
the box, with the questions asked on the way. `tests/link/test_ssh_configurations.py` checks every row, plain options
together, and `make soak` each alone; `python -m tests.support.ssh_table > docs/ssh.md` prints this page.
"""
NOT_TESTED = """
## Not tested

| configuration | |
|---|---|
| FIDO keys (`ed25519-sk`, "touch your key") | not tested |
| Home directories on NFS | not tested |
| Laptops with macOS | not tested |
| Laptops with Windows | not tested there; paramiko ([boxes.md](boxes.md#laptops-with-windows-and-macos)) |
| GSSAPI, PKCS#11 | not tested |
"""
_UNSTABLE = (
    (r"/tmp/lab-\w+/?", ""),
    (r"server\d+/sshd/", ""),
    (r"SHA256:[\w+/]+", "SHA256:…"),
    (r"\[?127\.0\.0\.1\]?:\d+", "127.0.0.1"),
    (r"port \d+", "port …"),
    (r"~?/\S*/\.ssh/", "~/.ssh/"),
    (r"\s+", " "),
)
LONGEST = 150


def cell(outcome: Outcome) -> str:
    """``yes`` or ``no``, and what was asked."""
    asked = [kind for kind in dict.fromkeys(outcome.asked) if outcome.connected]
    return ("yes" if outcome.connected else "no") + (f" (asks: {', '.join(asked)})" if asked else "")


def message(text: str) -> str:
    """A message without paths, ports and fingerprints of one run."""
    for pattern, replacement in _UNSTABLE:
        text = re.sub(pattern, replacement, text)
    text = re.split(r"(?<=[^.])\. |; SSH agent's", text)[0].strip()
    return (text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " …").replace("|", "\\|")


def line(case: Case, ssh: Outcome, openssh: Outcome, paramiko: Outcome) -> str:
    """One row of the table."""
    differs = paramiko.connected != ssh.connected
    last = cell(paramiko) + (f": {message(paramiko.message)}" if differs and paramiko.message else "")
    return f"| {case.name} | {cell(ssh)} | {cell(openssh)} | {last} |"


def page(lines: dict[tuple[str, str], str]) -> str:
    """The whole page from one line for each case."""
    text, group = HEAD, ""
    for case in CASES:
        if case.group != group:
            group = case.group
            text += f"\n## {group}\n\n| configuration | `ssh` | openssh, auto | paramiko |\n|---|---|---|---|\n"
        text += lines[case.group, case.name] + "\n"
    return text + NOT_TESTED


def run(case: Case, *transports: str) -> list[Outcome]:
    """The outcomes of ``ssh`` and of transports, against the same servers."""
    with lab() as place:
        row = case.build(place)
        return [place.ssh(row), *(place.link(row, transport) for transport in transports)]


def main() -> None:
    lines = {}
    for case in CASES:
        if reason := case.missing():
            sys.exit(f"'{case.name}' cannot run here: {reason}")
        print(case.name, file=sys.stderr)
        ssh, openssh, paramiko = run(case, "openssh", "paramiko")
        lines[case.group, case.name] = line(case, ssh, openssh, paramiko)
    print(page(lines), end="")


if __name__ == "__main__":
    main()
