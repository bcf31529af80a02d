"""The agent's bundle, one zip file named by its SHA-256, and how it is brought to a box that has only a Python.

    python -I HASH.pyz serve

Laptop and agent cannot disagree on versions, and a box can be inspected before anything is installed on it. The same
sources give the same bytes: sorted entries, fixed timestamps.

The account's shell may be any shell and may print a greeting, so answers lie between two markers. Without the second
one the answer is incomplete: the box has not refused anything (see :mod:`remote`).

The first script starts the agent where the box has it: a known box costs one round trip. Another one gets the bundle
over the standard input of the agent (:mod:`remote.agent.from_memory`), in a second one.

All scripts run in one session of one login: a loop in ``sh`` reads one encoded script per line. The account's shell
sees one constant command without a character that any shell reads differently. Lines that are not for the loop are
ignored, so what the agent reads first may follow the script that may start it: no answer is awaited.
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import re
import secrets
import shlex
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.protocol.text import clean

ENTRY = """\
import sys
from remote.agent import compiled
compiled.use()
if sys.argv[1:2] == ["index"]:
    from remote.index.process import main
else:
    from remote.agent.program import main
sys.exit(main(sys.argv[1:]))
"""
PACKAGES = ("remote/protocol", "remote/agent", "remote/index", "grpo_train/run_dir")
"""Carried whole, with the ``__init__.py`` of each parent."""
FILES = ("remote/base.py",)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LIBTMUX_LEFT_OUT = ("test", "pytest_plugin.py", "__pycache__")


@dataclass(frozen=True)
class Bundle:
    """Contents and hash of the bundle."""

    data: bytes
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.sha256}.pyz"

    @property
    def cached(self) -> Path:
        """Its file in the user's cache directory, which may not exist."""
        return _folder() / self.name

    def path(self) -> Path:
        """Path of the bundle in the user's cache directory; written when missing or damaged. Raises OSError."""
        file = self.cached
        try:
            if hashlib.sha256(file.read_bytes()).hexdigest() == self.sha256:
                return file
        except OSError:
            pass
        from grpo_train.run_dir.files import atomic_write

        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, self.data)
        return file


@functools.cache
def build() -> Bundle:
    """The bundle of the installed sources, built once per process (about 0.1 s)."""
    entries = _entries()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, entries[name], zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return Bundle(data, hashlib.sha256(data).hexdigest())


def stored() -> Path:
    """Path of the bundle in the cache directory; built only if these sources never were. Raises OSError."""
    digest = hashlib.sha256()
    for name, content in sorted(_entries().items()):
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    note = _folder() / f"{digest.hexdigest()}.name"
    try:
        name = note.read_text()
        if hashlib.sha256((_folder() / name).read_bytes()).hexdigest() + ".pyz" == name:
            return _folder() / name
    except (OSError, ValueError):
        pass
    from grpo_train.run_dir.files import atomic_write

    file = build().path()
    atomic_write(note, file.name)
    return file


def _folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("grpo-tui")) / "agent"


def _entries() -> dict[str, bytes]:
    return {"__main__.py": ENTRY.encode(), **_sources()}


def _sources() -> dict[str, bytes]:
    """Archive name to content: our packages, and libtmux as installed. Raises RuntimeError without libtmux."""
    import importlib.util

    home = Path(__file__).resolve().parents[2]
    patterns = [pattern for name in PACKAGES for pattern in (f"{name}/*.py", f"{name.split('/')[0]}/__init__.py")]
    patterns += FILES
    found = {
        file.relative_to(home).as_posix(): file.read_bytes() for pattern in patterns for file in home.glob(pattern)
    }
    spec = importlib.util.find_spec("libtmux")  # does not import it
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("libtmux is not installed: reinstall grpo-tui (make setup)")
    library = Path(next(iter(spec.submodule_search_locations)))
    for file in library.rglob("*.py"):
        parts = file.relative_to(library).parts
        if not set(parts) & set(_LIBTMUX_LEFT_OUT):
            found["/".join(("libtmux", *parts))] = file.read_bytes()
    return found


PROBE_STEPS = 2
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
want, stored = sys.argv[1], ''
for file in sys.argv[2:]:
    try:
        if not stored and os.path.isfile(file) and hashlib.sha256(open(file, 'rb').read()).hexdigest() == want:
            stored = file
    except OSError:
        pass
    print('place=' + file)
print('stored=' + stored)
"""
_RECEIVE = (
    "import hashlib, io, signal, sys, zipfile; want, size, limit, marker, *places = sys.argv[1:]; "
    "signal.alarm(int(limit)); data = io.BufferedReader(io.FileIO(0, closefd=False), 1).read(int(size)); "
    'signal.alarm(0); print("", marker, sep=chr(10), flush=True); '
    'hashlib.sha256(data).hexdigest() == want or sys.exit("the agent arrived incomplete"); '
    'code = zipfile.ZipFile(io.BytesIO(data)).read("remote/agent/from_memory.py"); '
    'module = {"__name__": "start"}; exec(code, module); module["start_from_memory"](data, want, places); '
    'from remote.agent.program import main; sys.exit(main(["serve"]))'
)
"""A buffer of 1 byte, so that nothing after the bundle is read."""
_UTF8 = "LC_ALL=C.UTF-8; export LC_ALL"
_NEW_ENOUGH = {"debian": 12.0, "ubuntu": 22.04}
"""Releases whose own Python is 3.10 or newer."""


def start_agent(box: Box, shell: BoxShell, greeting: bytes, wait_ready: Callable[[], None]) -> None:
    """Start the agent, which reads ``greeting`` first; its frames follow. ``wait_ready``: waits for the shell.

    Raises Refused, and Unreachable for an incomplete answer.
    """
    begin, end, started = (f"grpo-{name}-{secrets.token_hex(8)}" for name in ("begin", "end", "agent"))
    what = "probing the box"
    shell.run(_first_script(box, begin, end, started), greeting, PROBE_STEPS, what)
    wait_ready()
    output, marker = shell.until(what, started, end)
    if marker == started:
        return
    _, begun, answer = output.partition(f"\n{begin}\n")
    if not begun:
        raise Unreachable(f"{what}: the answer of '{box.name}' is incomplete")
    pairs = [line.partition("=")[::2] for line in answer.splitlines()]
    values = dict(pairs)
    if not values.get("python"):
        raise Refused(_no_python(box, [value for name, value in pairs if name == "old"], values.get("os", "")))
    argv = receiving_argv(values["python"], started, [place for name, place in pairs if name == "place"])
    what = "uploading the agent"
    shell.run(f"{_UTF8}; umask 077; exec {shlex.join(argv)}", build().data + greeting, UPLOAD_STEPS, what)
    shell.until(what, started)


def start_marker() -> str:
    """A line that nothing else prints, before the agent's frames."""
    return f"grpo-agent-{secrets.token_hex(8)}"


def receiving_argv(python: str, marker: str, places: list[str]) -> list[str]:
    """A command that reads the bundle, prints the marker and becomes the agent; one of the places may store it."""
    bundle = build()
    return [
        python,
        "-I",
        "-S",
        "-c",
        _RECEIVE,
        bundle.sha256,
        str(len(bundle.data)),
        str(UPLOAD_ENDS_S),
        marker,
        *places,
    ]


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


def _first_script(box: Box, begin: str, end: str, started: str) -> str:
    """A script that finds a Python 3.10 or newer and the stored bundle, and becomes the agent if it has found both.

    The agent cleans its environment itself: ``env -i NAME=VALUE`` would show a proxy's password in process lists.
    """
    bundle = build()
    pythons = [f'"{python}"' for python in _PYTHONS]
    if box.repo:
        pythons.append(f"{_in_home(box.repo)}/.venv/bin/python")
    if box.python:
        pythons = [_in_home(box.python)]
    first = f'set -- {_in_home(box.agent_dir)}/{bundle.name} "$@"\n' if box.agent_dir else ""
    return (
        f"printf '\\n%s\\n' {begin}\n"
        f'set -- "$HOME/{FOLDER}/{bundle.name}"\n'
        f'[ -z "$XDG_RUNTIME_DIR" ] || set -- "$@" "$XDG_RUNTIME_DIR/grpo-agent/{bundle.name}"\n'
        f"{first}"
        "result= newline='\n'\n"
        f"for python in {' '.join(pythons)}; do\n"
        '  found=$(command -v "$python" 2>/dev/null) || continue\n'
        f'  result=$("$found" -I -S -c {shlex.quote(_PROBE)} {bundle.sha256} "$@" 2>/dev/null </dev/null) || continue\n'
        "  case $result in place=*) break;; esac\n"
        "  printf '%s\\n' \"$result\"\n"
        "done\n"
        "case $result in\n"
        f"  *\"$newline\"stored=/*) {_UTF8}; printf '\\n%s\\n' {started}\n"
        '    exec "$found" -I -S "${result##*"$newline"stored=}" serve;;\n'
        '  place=*) printf \'python=%s\\n%s\\n\' "$found" "$result";;\n'
        "esac\n"
        '(. /etc/os-release; printf \'os=%s %s\\n\' "$ID" "$VERSION_ID") 2>/dev/null </dev/null\n'
        f"printf '\\n%s\\n' {end}"
    )


def _in_home(path: str) -> str:
    """A path for a script; ``~/`` is the home directory."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


MAX_ANSWER = 1 << 20
"""Bytes that a script may print, or a login shell before the agent starts."""


class ShellSession(Protocol):
    """The session in which the loop runs."""

    output: bytes
    """Received, not yet read."""

    def limit(self, steps: int) -> None:
        """Begin a time limit, in steps."""

    def write(self, data: bytes, what: str) -> None:
        """Send within the time limit. Raises Unreachable or Refused."""

    def more(self, what: str) -> None:
        """Wait for more output within the time limit. Raises Unreachable, Refused or Flood."""


class BoxShell:
    """The loop of one session. ``command`` starts it; it prints the line ``ready``."""

    def __init__(self, session: ShellSession) -> None:
        self._session = session
        self._startup = ""
        """What the account's shell printed before the loop ran."""
        self._token = secrets.token_hex(8)
        self.ready = f"grpo-ready-{self._token}"
        self.command = (
            f"sh -c 'echo; echo {self.ready}; while read -r line; do case $line in {self._token}*) "
            f'eval "$(printf %b "${{line#{self._token}}}")";; esac; done\''
        )

    def run(self, script: str, following: bytes, steps: int, what: str) -> None:
        """Run a script within a time limit. ``following``: bytes that it, or what it becomes, reads first."""
        self._session.limit(steps)
        encoded = "".join(
            chr(byte) if 32 <= byte < 127 and byte not in b"\\" else f"\\0{byte:03o}" for byte in script.encode()
        )
        self._session.write(f"{self._token}{encoded}\n".encode() + following, what)

    def until(self, what: str, *markers: str) -> tuple[str, str]:
        """The output before a line that is one of the markers, and that marker. Raises as :meth:`ShellSession.more`."""
        lines = {marker: f"\n{marker}\n".encode() for marker in markers}
        while True:
            for marker, line in lines.items():
                before, found, rest = self._session.output.partition(line)
                if found:
                    self._session.output = rest
                    if marker == self.ready:
                        self._startup = before.decode(errors="replace")
                    return before.decode(errors="replace"), marker
            self._session.more(what)

    def waits_for(self, errors: bytearray) -> str:
        """The last output of a shell that hangs, for a message: its startup file may ask a question. "" without output.

        ``errors``: its standard error.
        """
        text = self._startup + (self._session.output + b"\n" + errors).decode(errors="replace")
        lines = [line for line in clean(text).splitlines() if line.strip()]
        asks = "; a startup file such as ~/.bashrc must not ask anything in a login without a terminal"
        return f": its shell printed '{lines[-1].strip()[-200:]}'{asks}" if lines else ""
