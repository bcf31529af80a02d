"""Brings the agent onto a box that has only a Python, over any transport that runs commands.

The account's shell may be any shell and may print a greeting, so scripts go to ``/bin/sh`` and answers lie between two
markers. Without the second one the answer is incomplete: the box has not refused anything (see :mod:`remote`).
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable

from remote.boxes import Box
from remote.bundle import build
from remote.transports import Refused, Unreachable

PROBE_STEPS = 2
UPLOAD_STEPS = 8
UPLOAD_ENDS_S = 300
"""The box removes an upload that has not ended by then: a cut network does not end it."""
DAMAGED = 75
"""Exit status of an upload whose bytes differ from those sent."""
FOLDER = ".grpo/agent"
"""Relative to the home directory."""
_PYTHONS = (
    *("python3", "/usr/bin/python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"),
    *("$HOME/miniconda3/bin/python3", "$HOME/anaconda3/bin/python3", "/opt/conda/bin/python3"),
)
_PROBE = (
    "import hashlib, os, sys; sys.version_info >= (3, 10) or sys.exit(1); f = sys.argv[1]; "
    "print(hashlib.sha256(open(f, 'rb').read()).hexdigest() if os.path.isfile(f) else '-')"
)
_STORE = (
    "import atexit, hashlib, os, signal, sys; f, want, limit, damaged = sys.argv[1:]; "
    "signal.signal(signal.SIGALRM, lambda *_: sys.exit('the upload did not end')); signal.alarm(int(limit)); "
    "d = os.path.dirname(f); t = f + '.%d.tmp' % os.getpid(); os.makedirs(d, 0o700, exist_ok=True); o = open(t, 'wb'); "
    "atexit.register(lambda: os.path.exists(t) and os.unlink(t)); o.write(sys.stdin.buffer.read()); o.flush(); "
    "os.fsync(o.fileno()); o.close(); ok = hashlib.sha256(open(t, 'rb').read()).hexdigest() == want; "
    "ok and os.replace(t, f); sys.exit(0 if ok else int(damaged))"
)
Execute = Callable[[str, bytes, int, str, str], tuple[int, str, str]]
"""Runs a command on the box: its standard input, time limit in steps, purpose, and the marker that ends its output.

Returns the exit status, output and errors. Raises Unreachable unless an exit status was received.
"""


def install(box: Box, execute: Execute) -> list[str]:
    """Find a Python on the box and store the bundle unless it is there; returns the agent's argv.

    Raises Refused, and Unreachable for an incomplete answer.
    """
    bundle = build()
    begin, end = _markers()
    script = _enclosed(_probe_script(bundle.name, box.repo), begin, end, "\n")
    result = execute("/bin/sh -s", f"{script}\n".encode(), PROBE_STEPS, "probing the box", end)
    _, answer, _ = _answer(box, "the probe", result, begin, end)
    values = dict(line.partition("=")[::2] for line in answer.splitlines())
    if not values.get("python"):
        raise Refused(f"no Python 3.10 or newer on '{box.name}'; on the box: sudo apt-get install -y python3")
    python, agent = values["python"], values.get("agent", "")
    if values.get("hash") != bundle.sha256:
        begin, end = _markers()
        store = [python, "-I", "-c", _STORE, agent, bundle.sha256, str(UPLOAD_ENDS_S), str(DAMAGED)]
        command = _in_sh(_enclosed(f"umask 077; {shlex.join(store)}", begin, end, "; "))
        result = execute(command, bundle.data, UPLOAD_STEPS, "uploading the agent", end)
        status, output, errors = _answer(box, "the upload of the agent", result, begin, end)
        if status == DAMAGED:
            raise Unreachable(f"the upload of the agent to '{box.name}' arrived incomplete")
        if status:
            reason = ((errors or output).strip().splitlines() or [f"exit status {status}"])[-1]
            raise Refused(f"cannot store the agent on '{box.name}' at {agent}: {reason}")
    return [python, "-I", agent, "serve"]


def _markers() -> tuple[str, str]:
    token = secrets.token_hex(8)
    return f"grpo-begin-{token}", f"grpo-end-{token}"


def _enclosed(script: str, begin: str, end: str, separator: str) -> str:
    """A script that prints a marker before and after its output; it exits with the script's status."""
    mark = "printf '\\n%s\\n'"
    return separator.join((f"{mark} {begin}", script, "status=$?", f"{mark} {end}", "exit $status"))


def _answer(box: Box, what: str, result: tuple[int, str, str], begin: str, end: str) -> tuple[int, str, str]:
    """The exit status, what the script itself printed, and the errors."""
    status, output, errors = result
    _, begun, rest = output.partition(f"\n{begin}\n")
    if not begun:
        reason = (errors or output).strip()[-300:] or f"exit status {status}"
        raise Refused(f"'{box.name}' does not run commands for this user: {reason}")
    answer, ended, _ = rest.partition(f"\n{end}\n")
    if not ended:
        raise Unreachable(f"{what} on '{box.name}' ended early (exit status {status})")
    return status, answer, errors


def _probe_script(bundle: str, repo: str) -> str:
    """A script that finds a Python 3.10 or newer and hashes the stored bundle."""
    pythons = [f'"{python}"' for python in _PYTHONS]
    if repo:
        home = f'"$HOME"/{shlex.quote(repo[2:])}' if repo.startswith("~/") else shlex.quote(repo)
        pythons.append(f"{home}/.venv/bin/python")
    return (
        f'agent="$HOME/{FOLDER}/{bundle}"\n'
        f"for python in {' '.join(pythons)}; do\n"
        '  found=$(command -v "$python" 2>/dev/null) || continue\n'
        f'  hash=$("$found" -I -c {shlex.quote(_PROBE)} "$agent" 2>/dev/null </dev/null) || continue\n'
        '  printf \'python=%s\\nagent=%s\\nhash=%s\\n\' "$found" "$agent" "$hash"\n'
        "  break\n"
        "done"
    )


def serve_command(argv: list[str], marker: str) -> str:
    """A command that becomes the agent; its frames follow the marker.

    The agent cleans its environment itself: ``env -i NAME=VALUE`` would show a proxy's password in process lists.
    """
    return _in_sh(f"printf '\\n%s\\n' {shlex.quote(marker)}; LC_ALL=C.UTF-8; export LC_ALL; exec {shlex.join(argv)}")


def _in_sh(script: str) -> str:
    return f"exec /bin/sh -c {shlex.quote(script)}"
