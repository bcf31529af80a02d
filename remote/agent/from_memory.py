"""Starts the agent from the bytes of its bundle, which the laptop sends when the box does not have it.

The bundle is stored in the first place that accepts it, and the agent starts from there. Where the disk is full or
read-only, its modules are imported from memory. :mod:`remote.transports.bootstrap` has the command that reads the
bytes.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

sha256 = ""
"""Hash of the bundle if the agent runs from memory, else ""."""
bundle = b""
"""The bundle if the agent runs from memory, else empty."""
problems: list[str] = []
"""Why no place accepted the bundle: the place and the reason, one each."""


def start_from_memory(data: bytes, name: str, places: Sequence[str]) -> None:
    """Become the stored agent, or return with its modules in memory. ``name``: hash of the bundle."""
    failed = []
    for place in places:
        try:
            store_bundle(data, Path(place))
            os.execv(sys.executable, [sys.executable, "-I", "-S", place, "serve"])
        except OSError as error:
            failed.append(f"{place}: {error.strerror or error}")
    sys.meta_path.insert(0, BundleImporter(data))
    from remote.agent import from_memory  # the module as the agent imports it

    from_memory.bundle, from_memory.sha256, from_memory.problems = data, name, failed


def store_bundle(data: bytes, place: Path) -> None:
    """Store the bundle, whole or not at all. Raises OSError."""
    place.parent.mkdir(0o700, parents=True, exist_ok=True)
    part = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


class BundleImporter:
    """Imports modules from a zip file in memory."""

    def __init__(self, data: bytes) -> None:
        import zipfile  # a stored agent does not need it

        self._archive = zipfile.ZipFile(io.BytesIO(data))
        self._names = set(self._archive.namelist())

    def _file(self, module: str) -> str:
        """The module's file in the archive, or ""."""
        path = module.replace(".", "/")
        return next((file for file in (f"{path}/__init__.py", f"{path}.py") if file in self._names), "")

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not (file := self._file(fullname)):
            return None
        is_package = file.endswith("/__init__.py")
        spec = ModuleSpec(fullname, self, origin=f"<agent>/{file}", is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True  # some modules read __file__
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual module."""

    def exec_module(self, module: ModuleType) -> None:
        file = f"<agent>/{self._file(module.__name__)}"
        exec(compile(self.get_source(module.__name__), file, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, fullname: str) -> str:
        """For tracebacks, too."""
        return self._archive.read(self._file(fullname)).decode()
