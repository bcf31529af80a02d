"""Brings the agent onto a box that has only a Python, over any transport that runs commands.

The account's shell may be any shell and may print a greeting, so scripts go to ``/bin/sh`` and answers lie between two
markers. Without the second one the answer is incomplete: the box has not refused anything (see :mod:`remote`).
"""

from __future__ import annotations

import math
import re
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
    *("$HOME/.local/bin/python3.12", "$HOME/.local/bin/python3.13", "$HOME/.local/bin/python3.14"),  # of uv
)
_PROBE = (
    "import hashlib, os, sys; v = sys.version_info[:2]; v >= (3, 10) or sys.exit(print('old=%d.%d' % v)); "
    "[print('place=%s %s' % (hashlib.sha256(open(f, 'rb').read()).hexdigest() if os.path.isfile(f) else '-', f)) "
    "for f in sys.argv[1:]]"
)
_NEW_ENOUGH = {"debian": 12.0, "ubuntu": 22.04}
"""Releases whose own Python is 3.10 or newer."""
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
    script = _enclosed(_probe_script(bundle.name, box), begin, end, "\n")
    result = execute("/bin/sh -s", f"{script}\n".encode(), PROBE_STEPS, "probing the box", end)
    _, answer, _ = _answer(box, "the probe", result, begin, end)
    pairs = [line.partition("=")[::2] for line in answer.splitlines()]
    values = dict(pairs)
    if not values.get("python"):
        raise Refused(_no_python(box, [value for name, value in pairs if name == "old"], values.get("os", "")))
    python = values["python"]
    places = [value.partition(" ")[::2] for name, value in pairs if name == "place"]
    stored = [agent for hashed, agent in places if hashed == bundle.sha256]
    problems = []
    for agent in [] if stored else [agent for _, agent in places]:
        if problem := _store(box, execute, python, agent):
            problems.append(f"at {agent}: {problem}")
            continue
        stored.append(agent)
        break
    if not stored:
        advice = "" if box.agent_dir else "; 'agent_dir' in boxes.yaml names another directory"
        raise Refused(f"cannot store the agent on '{box.name}' {', '.join(problems)}{advice}")
    return [python, "-I", stored[0], "serve"]


def _store(box: Box, execute: Execute, python: str, agent: str) -> str:
    """Upload the bundle; returns why the box cannot store it, or "". Raises Refused and Unreachable."""
    bundle = build()
    begin, end = _markers()
    store = [python, "-I", "-c", _STORE, agent, bundle.sha256, str(UPLOAD_ENDS_S), str(DAMAGED)]
    command = _in_sh(_enclosed(f"umask 077; {shlex.join(store)}", begin, end, "; "))
    result = execute(command, bundle.data, UPLOAD_STEPS, "uploading the agent", end)
    status, output, errors = _answer(box, "the upload of the agent", result, begin, end)
    if status == DAMAGED:
        raise Unreachable(f"the upload of the agent to '{box.name}' arrived incomplete")
    return ((errors or output).strip().splitlines() or [f"exit status {status}"])[-1] if status else ""


def _no_python(box: Box, old: list[str], system: str) -> str:
    """The message for a box without a usable Python. ``system``: name and version of its distribution."""
    if box.python:
        what = f"is Python {old[0]}" if old else "does not run"
        return f"'{box.python}' ('python' of '{box.name}' in boxes.yaml) {what}; Python 3.10 or newer is needed"
    name, _, version = system.partition(" ")
    is_new = re.fullmatch(r"\d+(\.\d+)?", version) and float(version) >= _NEW_ENOUGH.get(name, math.inf)
    advice = "sudo apt-get install -y python3" if is_new else "uv python install 3.12 (https://docs.astral.sh/uv)"
    newest = max(old, key=lambda version: [int(part) for part in version.split(".")], default="")
    found = f"; the newest is {newest}" if newest else ""
    return f"no Python 3.10 or newer on '{box.name}'{found}. On the box: {advice}"


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


def _probe_script(bundle: str, box: Box) -> str:
    """A script that finds a Python 3.10 or newer and hashes the stored bundle."""
    pythons = [f'"{python}"' for python in _PYTHONS]
    if box.repo:
        pythons.append(f"{_in_home(box.repo)}/.venv/bin/python")
    if box.python:
        pythons = [_in_home(box.python)]
    first = f'set -- {_in_home(box.agent_dir)}/{bundle} "$@"\n' if box.agent_dir else ""
    return (
        f'set -- "$HOME/{FOLDER}/{bundle}"\n'
        f'[ -z "$XDG_RUNTIME_DIR" ] || set -- "$@" "$XDG_RUNTIME_DIR/grpo-agent/{bundle}"\n'
        f"{first}"
        '(. /etc/os-release; printf \'os=%s %s\\n\' "$ID" "$VERSION_ID") 2>/dev/null\n'
        f"for python in {' '.join(pythons)}; do\n"
        '  found=$(command -v "$python" 2>/dev/null) || continue\n'
        f'  result=$("$found" -I -c {shlex.quote(_PROBE)} "$@" 2>/dev/null </dev/null) || continue\n'
        '  case $result in place=*) printf \'python=%s\\n%s\\n\' "$found" "$result"; break;; esac\n'
        "  printf '%s\\n' \"$result\"\n"
        "done"
    )


def _in_home(path: str) -> str:
    """A path for a script; ``~/`` is the home directory."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def serve_command(argv: list[str], marker: str) -> str:
    """A command that becomes the agent; its frames follow the marker.

    The agent cleans its environment itself: ``env -i NAME=VALUE`` would show a proxy's password in process lists.
    """
    return _in_sh(f"printf '\\n%s\\n' {shlex.quote(marker)}; LC_ALL=C.UTF-8; export LC_ALL; exec {shlex.join(argv)}")


def _in_sh(script: str) -> str:
    return f"exec /bin/sh -c {shlex.quote(script)}"
