"""The agent's bundle: one zip file that any Python 3.10 or newer runs, named by its SHA-256.

    python -I HASH.pyz serve

Laptop and agent cannot disagree on versions, and a box can be inspected before anything is installed on it. The same
sources give the same bytes: sorted entries, fixed timestamps.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

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
PACKAGES = ("remote/protocol", "remote/agent", "remote/agent/slurm", "remote/index", "grpo_train/run_dir")
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
