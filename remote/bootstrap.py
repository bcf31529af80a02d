"""Getting the agent onto a box on which nothing is installed but a Python: what is run there, word for word.

The account's shell may be anything and may print a greeting, so scripts go to ``/bin/sh`` on its standard input and
answers are looked for behind a marker.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

FOLDER = ".grpo/agent"
"""Below the home directory."""
_PYTHONS = (
    *("python3", "/usr/bin/python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"),
    *("$HOME/miniconda3/bin/python3", "$HOME/anaconda3/bin/python3", "/opt/conda/bin/python3"),
)
_LOOK = (
    "import hashlib, os, sys; sys.version_info >= (3, 10) or sys.exit(1); f = sys.argv[1]; "
    "print(hashlib.sha256(open(f, 'rb').read()).hexdigest() if os.path.isfile(f) else '-')"
)
_STORE = (
    "import hashlib, os, sys; f, want = sys.argv[1:]; d = os.path.dirname(f); t = f + '.%d.tmp' % os.getpid(); "
    "os.makedirs(d, 0o700, exist_ok=True); o = open(t, 'wb'); o.write(sys.stdin.buffer.read()); o.flush(); "
    "os.fsync(o.fileno()); o.close(); ok = hashlib.sha256(open(t, 'rb').read()).hexdigest() == want; "
    "os.replace(t, f) if ok else os.unlink(t); sys.exit(0 if ok else 'the upload came damaged')"
)


@dataclass(frozen=True)
class Found:
    """What a look at the box says."""

    python: str
    agent: str
    """Absolute path of the bundle, whether it is there or not."""
    present: bool


def look_script(marker: str, bundle: str, repo: str) -> str:
    """A script that finds a Python ≥ 3.10 and says whether the bundle is there, whole."""
    pythons = [f'"{python}"' for python in _PYTHONS]
    if repo:
        home = f'"$HOME"/{shlex.quote(repo[2:])}' if repo.startswith("~/") else shlex.quote(repo)
        pythons.append(f"{home}/.venv/bin/python")
    return (
        f'agent="$HOME/{FOLDER}/{bundle}"\n'
        f"printf '\\n%s\\n' {shlex.quote(marker)}\n"
        f"for python in {' '.join(pythons)}; do\n"
        '  found=$(command -v "$python" 2>/dev/null) || continue\n'
        f'  said=$("$found" -I -c {shlex.quote(_LOOK)} "$agent" 2>/dev/null </dev/null) || continue\n'
        '  printf \'python=%s\\nagent=%s\\nhash=%s\\n\' "$found" "$agent" "$said"\n'
        "  break\n"
        "done\n"
    )


def read_look(output: str, marker: str, sha256: str) -> Found | None:
    """The answer to :func:`look_script`; None where no Python will do."""
    _, _, answer = output.partition(f"\n{marker}\n")
    said = dict(line.partition("=")[::2] for line in answer.splitlines())
    if not said.get("python"):
        return None
    return Found(said["python"], said["agent"], said.get("hash") == sha256)


def store_command(found: Found, sha256: str) -> str:
    """A command that stores its standard input as the bundle, if the hash is right."""
    return _in_sh(f"umask 077; exec {shlex.join([found.python, '-I', '-c', _STORE, found.agent, sha256])}")


def serve_command(found: Found, marker: str) -> str:
    """A command that becomes the agent; its frames follow the marker. The agent cleans its environment itself: given
    by ``env -i NAME=VALUE``, values (a proxy's password) would stand in every process list."""
    argv = shlex.join([found.python, "-I", found.agent, "serve"])
    return _in_sh(f"printf '\\n%s\\n' {shlex.quote(marker)}; LC_ALL=C.UTF-8; export LC_ALL; exec {argv}")


def _in_sh(script: str) -> str:
    return f"exec /bin/sh -c {shlex.quote(script)}"
