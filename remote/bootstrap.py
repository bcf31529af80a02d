"""Brings the agent onto a box that has only a Python, over any transport that runs commands.

The account's shell may be any shell and may print a greeting, so scripts go to ``/bin/sh`` on standard input and
answers follow a marker.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable

from remote.boxes import Box
from remote.bundle import build
from remote.transports import Refused

PROBE_S = 30.0
UPLOAD_S = 120.0
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
    "import hashlib, os, sys; f, want = sys.argv[1:]; d = os.path.dirname(f); t = f + '.%d.tmp' % os.getpid(); "
    "os.makedirs(d, 0o700, exist_ok=True); o = open(t, 'wb'); o.write(sys.stdin.buffer.read()); o.flush(); "
    "os.fsync(o.fileno()); o.close(); ok = hashlib.sha256(open(t, 'rb').read()).hexdigest() == want; "
    "os.replace(t, f) if ok else os.unlink(t); sys.exit(0 if ok else 'the upload was damaged')"
)
Execute = Callable[[str, bytes, float, str], tuple[int, str, str]]
"""Runs a command on the box: its standard input, time limit and purpose; returns exit status, output and errors."""


def install(box: Box, execute: Execute) -> list[str]:
    """Find a Python on the box and store the bundle unless it is there; returns the agent's argv. Raises Refused."""
    bundle, marker = build(), f"grpo-probe-{secrets.token_hex(8)}"
    script = _probe_script(marker, bundle.name, box.repo)
    status, output, errors = execute("/bin/sh -s", script.encode(), PROBE_S, "probing the box")
    _, found, answer = output.partition(f"\n{marker}\n")
    if not found:
        reason = (errors or output).strip()[-300:] or f"exit code {status}"
        raise Refused(f"'{box.name}' does not run commands for this user: {reason}")
    values = dict(line.partition("=")[::2] for line in answer.splitlines())
    if not values.get("python"):
        raise Refused(f"no Python 3.10 or newer on '{box.name}'; on the box: sudo apt-get install -y python3")
    python, agent = values["python"], values.get("agent", "")
    if values.get("hash") != bundle.sha256:
        command = _in_sh(f"umask 077; exec {shlex.join([python, '-I', '-c', _STORE, agent, bundle.sha256])}")
        status, output, errors = execute(command, bundle.data, UPLOAD_S, "uploading the agent")
        if status:
            reason = ((errors or output).strip().splitlines() or [f"exit code {status}"])[-1]
            raise Refused(f"cannot store the agent on '{box.name}' at {agent}: {reason}")
    return [python, "-I", agent, "serve"]


def _probe_script(marker: str, bundle: str, repo: str) -> str:
    """A script that finds a Python 3.10 or newer and hashes the stored bundle."""
    pythons = [f'"{python}"' for python in _PYTHONS]
    if repo:
        home = f'"$HOME"/{shlex.quote(repo[2:])}' if repo.startswith("~/") else shlex.quote(repo)
        pythons.append(f"{home}/.venv/bin/python")
    return (
        f'agent="$HOME/{FOLDER}/{bundle}"\n'
        f"printf '\\n%s\\n' {shlex.quote(marker)}\n"
        f"for python in {' '.join(pythons)}; do\n"
        '  found=$(command -v "$python" 2>/dev/null) || continue\n'
        f'  hash=$("$found" -I -c {shlex.quote(_PROBE)} "$agent" 2>/dev/null </dev/null) || continue\n'
        '  printf \'python=%s\\nagent=%s\\nhash=%s\\n\' "$found" "$agent" "$hash"\n'
        "  break\n"
        "done\n"
    )


def serve_command(argv: list[str], marker: str) -> str:
    """A command that becomes the agent; its frames follow the marker.

    The agent cleans its environment itself: ``env -i NAME=VALUE`` would show a proxy's password in process lists.
    """
    return _in_sh(f"printf '\\n%s\\n' {shlex.quote(marker)}; LC_ALL=C.UTF-8; export LC_ALL; exec {shlex.join(argv)}")


def _in_sh(script: str) -> str:
    return f"exec /bin/sh -c {shlex.quote(script)}"
