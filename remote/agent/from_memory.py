"""Starts the agent from the bytes of its bundle, which the laptop sends when the box does not have it.

The bundle is stored in the first place that accepts it, and the agent starts from there. Where the disk is full or
read-only, its modules are imported from memory. ``remote/bootstrap.py`` has the command that reads the bytes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

sha256 = ""
"""Hash of the bundle if the agent runs from memory, else ""."""
problems: list[str] = []
"""Why no place accepted the bundle: the place and the reason, one each."""


def start(data: bytes, name: str, places: Sequence[str]) -> None:
    """Become the agent. ``name``: hash of the bundle. Returns when an agent in memory has ended."""
    failed = []
    for place in places:
        try:
            store(data, Path(place))
            os.execv(sys.executable, [sys.executable, "-I", "-S", place, "serve"])
        except OSError as error:
            failed.append(f"{place}: {error.strerror or error}")
    sys.meta_path.insert(0, BundleImporter(data))
    from remote.agent import from_memory  # the module as the agent imports it
    from remote.agent.serve import main

    from_memory.sha256, from_memory.problems = name, failed
    sys.exit(main(["serve"]))


def store(data: bytes, place: Path) -> None:
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


class BundleImporter(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from a zip file in memory."""

    def __init__(self, data: bytes) -> None:
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        self._names = set(self._archive.namelist())

    def _file(self, module: str) -> str:
        """The module's file in the archive, or ""."""
        path = module.replace(".", "/")
        return next((file for file in (f"{path}/__init__.py", f"{path}.py") if file in self._names), "")

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not (file := self._file(fullname)):
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=f"<agent>/{file}")
        if spec is not None:
            spec.has_location = True  # some modules read __file__
        return spec

    def is_package(self, fullname: str) -> bool:
        return self._file(fullname).endswith("/__init__.py")

    def get_source(self, fullname: str) -> str:
        return self._archive.read(self._file(fullname)).decode()

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_source(fullname), f"<agent>/{self._file(fullname)}")
