"""Compiled modules of the running bundle, in one file beside it: compiling them is most of the time of a start.

Python compiles the modules of a zip file at every start, and twice. The file is written while an agent runs, for its
version of Python; a missing, foreign or damaged one is not used.
"""

from __future__ import annotations

import marshal
import os
import sys
import zlib
from importlib.machinery import ModuleSpec
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType
from zipimport import zipimporter

LEAST_SHARE = 0.9
"""A file with fewer of the loaded modules is written again."""
_known: dict[str, CodeType] = {}


def place(bundle: str) -> str:
    """The file for a bundle and this version of Python."""
    return f"{bundle}.{sys.implementation.cache_tag}"


def use() -> None:
    """Import the modules of the running bundle from its file where they are in it."""
    try:
        with open(place(sys.argv[0]), "rb") as file:
            stored = file.read()
        start = len(_head(b""))
        if stored[:start] == _head(stored[start:]):
            _known.update(marshal.loads(stored[start:]))
            sys.meta_path.insert(0, _Importer())
    except (OSError, ValueError, EOFError, TypeError):
        pass


class _Importer:
    """Imports the modules that are in the file; zipimport finds the others."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        code = _known.get(fullname)
        if code is None:
            return None
        folder = f"{sys.argv[0]}/{fullname.replace('.', '/')}"
        is_package = code.co_filename.endswith("/__init__.py")
        origin = f"{folder}/__init__.py" if is_package else f"{folder}.py"
        spec = ModuleSpec(fullname, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [folder]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual module."""

    def exec_module(self, module: ModuleType) -> None:
        exec(_known[module.__name__], module.__dict__)

    def get_source(self, fullname: str) -> str | None:
        """For tracebacks."""
        return zipimporter("/".join((sys.argv[0], *fullname.split(".")[:-1]))).get_source(fullname)


def store_compiled() -> None:
    """Write the file of the running bundle unless it has most of the loaded modules; a full disk does not matter."""
    bundle = sys.argv[0]
    loaders = {name: getattr(module, "__loader__", None) for name, module in list(sys.modules.items())}
    new = {name: loader for name, loader in loaders.items() if isinstance(loader, zipimporter) and name != "__main__"}
    if not bundle.endswith(".pyz") or len(_known) >= LEAST_SHARE * (len(_known) + len(new)):
        return
    part = f"{bundle}.{os.getpid()}.tmp"
    try:
        content = marshal.dumps({**_known, **{name: loader.get_code(name) for name, loader in new.items()}})
        with open(part, "wb") as file:
            file.write(_head(content) + content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, place(bundle))
    except (OSError, ImportError, ValueError, zlib.error):
        try:
            os.unlink(part)
        except OSError:
            pass


def _head(content: bytes) -> bytes:
    """Version of the compiled code, and a checksum."""
    return MAGIC_NUMBER + zlib.crc32(content).to_bytes(4, "big")
