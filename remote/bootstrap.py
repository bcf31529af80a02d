"""Brings the agent onto a box that has only a Python, over any transport that runs commands.

The account's shell may be any shell and may print a greeting, so scripts go to ``/bin/sh`` and answers lie between two
markers. Without the second one the answer is incomplete: the box has not refused anything (see :mod:`remote`).

A box that does not have the bundle gets it over the standard input of the agent (:mod:`remote.agent.from_memory`).
"""

from __future__ import annotations

import math
import re
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from remote.boxes import Box
from remote.bundle import Bundle, build
from remote.transports import Refused, Unreachable

PROBE_STEPS = 2
START_STEPS = 1
UPLOAD_STEPS = 8
UPLOAD_ENDS_S = 300
"""The box ends an upload that has not arrived by then: a cut network does not end it."""
FOLDER = ".grpo/agent"
"""Relative to the home directory."""
_PYTHONS = (
    *("python3", "/usr/bin/python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"),
    *("$HOME/miniconda3/bin/python3", "$HOME/anaconda3/bin/python3", "/opt/conda/bin/python3"),
    *("$HOME/.local/bin/python3.12", "$HOME/.local/bin/python3.13", "$HOME/.local/bin/python3.14"),  # of uv
)
_PROBE = """\
import hashlib, os, sys
if sys.version_info[:2] < (3, 10):
    sys.exit(print('old=%d.%d' % sys.version_info[:2]))
for file in sys.argv[1:]:
    found = '-'
    try:
        found = os.path.isfile(file) and hashlib.sha256(open(file, 'rb').read()).hexdigest() or '-'
    except OSError:
        pass
    print('place=%s %s' % (found, file))
"""
_RECEIVE = (
    "import hashlib, io, signal, sys, zipfile; want, size, limit, marker, *places = sys.argv[1:]; "
    "signal.alarm(int(limit)); data = io.BufferedReader(io.FileIO(0, closefd=False), 1).read(int(size)); "
    'signal.alarm(0); print("", marker, sep=chr(10), flush=True); '
    'hashlib.sha256(data).hexdigest() == want or sys.exit("the agent arrived incomplete"); '
    'code = zipfile.ZipFile(io.BytesIO(data)).read("remote/agent/from_memory.py"); '
    'module = {"__name__": "start"}; exec(code, module); module["start"](data, want, places)'
)
"""One line, because the account's shell may be csh. A buffer of 1 byte, so that nothing after the bundle is read."""
_NEW_ENOUGH = {"debian": 12.0, "ubuntu": 22.04}
"""Releases whose own Python is 3.10 or newer."""
Execute = Callable[[str, bytes, int, str, str], tuple[int, str, str]]
"""Runs a command on the box: its standard input, time limit in steps, purpose, and the marker that ends its output.

Returns the exit status, output and errors. Raises Unreachable unless an exit status was received.
"""


@dataclass(frozen=True)
class Start:
    """How to start the agent."""

    command: str
    marker: str
    """The line after which its frames follow."""
    upload: bytes
    """What it reads first."""
    steps: int
    """Time limit until the marker."""


def probe(box: Box, execute: Execute) -> Start:
    """Find a Python on the box, and look whether it has the bundle.

    Raises Refused, and Unreachable for an incomplete answer.
    """
    bundle = build()
    begin, end = _markers()
    script = _enclosed(_probe_script(bundle.name, box), begin, end, "\n")
    result = execute("/bin/sh -s", f"{script}\n".encode(), PROBE_STEPS, "probing the box", end)
    pairs = [line.partition("=")[::2] for line in _answer(box, "the probe", result, begin, end).splitlines()]
    values = dict(pairs)
    if not values.get("python"):
        raise Refused(_no_python(box, [value for name, value in pairs if name == "old"], values.get("os", "")))
    places = [value.partition(" ")[::2] for name, value in pairs if name == "place"]
    stored = [place for found, place in places if found == bundle.sha256]
    return _start(values["python"], bundle, [place for _, place in places], stored[0] if stored else "")


def _start(python: str, bundle: Bundle, places: list[str], stored: str) -> Start:
    """The agent's start from a stored bundle, else from the uploaded one.

    The agent cleans its environment itself: ``env -i NAME=VALUE`` would show a proxy's password in process lists.
    """
    marker = start_marker()
    first = "LC_ALL=C.UTF-8; export LC_ALL; "
    if stored:
        run = f"{first}printf '\\n%s\\n' {marker}; exec {shlex.join([python, '-I', stored, 'serve'])}"
        return Start(_in_sh(run), marker, b"", START_STEPS)
    run = f"{first}umask 077; exec {shlex.join(receiving_argv(python, marker, places))}"
    return Start(_in_sh(run), marker, bundle.data, UPLOAD_STEPS)


def receiving_argv(python: str, marker: str, places: list[str]) -> list[str]:
    """A command that reads the bundle, prints the marker and becomes the agent; one of the places may store it."""
    bundle = build()
    return [python, "-I", "-c", _RECEIVE, bundle.sha256, str(len(bundle.data)), str(UPLOAD_ENDS_S), marker, *places]


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


def _answer(box: Box, what: str, result: tuple[int, str, str], begin: str, end: str) -> str:
    """What the script itself printed."""
    status, output, errors = result
    _, begun, rest = output.partition(f"\n{begin}\n")
    if not begun:
        reason = (errors or output).strip()[-300:] or f"exit status {status}"
        raise Refused(f"'{box.name}' does not run commands for this user: {reason}")
    answer, ended, _ = rest.partition(f"\n{end}\n")
    if not ended:
        raise Unreachable(f"{what} on '{box.name}' ended early (exit status {status})")
    return answer


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


def start_marker() -> str:
    """A line that nothing else prints, before the agent's frames."""
    return f"grpo-agent-{secrets.token_hex(8)}"


def _in_home(path: str) -> str:
    """A path for a script; ``~/`` is the home directory."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _in_sh(script: str) -> str:
    return f"exec /bin/sh -c {shlex.quote(script)}"
