"""Scripts that bring the agent onto a box that has only a Python.

The account's shell may be any shell and may print a greeting, so scripts go to ``/bin/sh`` on standard input and
answers follow a marker.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Probe:
    """Result of :func:`probe_script`."""

    python: str
    agent: str
    """Absolute path of the bundle, present or not."""
    present: bool


def probe_script(marker: str, bundle: str, repo: str) -> str:
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


def read_probe(output: str, marker: str, sha256: str) -> Probe | None:
    """Result of :func:`probe_script`; None without a suitable Python."""
    _, _, answer = output.partition(f"\n{marker}\n")
    values = dict(line.partition("=")[::2] for line in answer.splitlines())
    if not values.get("python"):
        return None
    return Probe(values["python"], values.get("agent", ""), values.get("hash") == sha256)


def store_command(probe: Probe, sha256: str) -> str:
    """A command that stores its standard input as the bundle if the hash matches."""
    return _in_sh(f"umask 077; exec {shlex.join([probe.python, '-I', '-c', _STORE, probe.agent, sha256])}")


def serve_command(probe: Probe, marker: str) -> str:
    """A command that becomes the agent; its frames follow the marker.

    The agent cleans its environment itself: ``env -i NAME=VALUE`` would show a proxy's password in process lists.
    """
    argv = shlex.join([probe.python, "-I", probe.agent, "serve"])
    return _in_sh(f"printf '\\n%s\\n' {shlex.quote(marker)}; LC_ALL=C.UTF-8; export LC_ALL; exec {argv}")


def _in_sh(script: str) -> str:
    return f"exec /bin/sh -c {shlex.quote(script)}"
