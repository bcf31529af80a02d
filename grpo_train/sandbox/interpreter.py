"""The interpreter that runs the programs, and the files it needs to read.

It is the resolved binary: a version manager's shim or the links of a virtual environment would slow down each start
and expose the environment's packages.
"""

from __future__ import annotations

import marshal
import os
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType

INSIDE = "grpo_train.sandbox.inside"
MODULES = ("kinds", "encode", "lockdown", "harness")
BOOTSTRAP = """\
import marshal, posix, sys
codes, sys.path[:], job = marshal.loads(posix.read(3, posix.fstat(3).st_size))
for name, code in codes:
    module = sys.modules[name] = type(sys)(name)
    module.__builtins__ = dict(__builtins__.__dict__)  # the program may rebind names in builtins
    exec(marshal.loads(code), module.__dict__)
module.main(job)
"""
ODDMENTS = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/zero", "/dev/urandom", "/dev/random")
NOT_FOR_PROGRAMS = {"site-packages", "dist-packages", "test", "idlelib", "ensurepip", "lib2to3", "config"}


@dataclass(frozen=True)
class Interpreter:
    """A Python of this process's version and its files that programs need."""

    binary: str
    arguments: tuple[str, ...]
    """Command line, up to the bootstrap code."""
    stdlib: str
    """Directory of the standard library: can be listed, but not read completely."""
    readable: tuple[str, ...]
    """Readable files and directories: standard library without third-party packages, shared libraries, time zones."""
    readable_roots: tuple[str, ...]
    """Path prefixes, a superset of ``readable``: opening anything else is reported as an attempt."""
    codes: tuple[tuple[str, bytes], ...]
    """Marshaled code of each module that runs inside."""
    path: list[str]
    """``sys.path``: extension modules first, so that importing one does not list the whole standard library."""
    fake_time: bytes


@lru_cache(maxsize=1)
def interpreter() -> Interpreter:
    """The resolved base binary of this process's interpreter."""
    binary = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    inside = Path(__file__).parent / "inside"
    codes = tuple((f"{INSIDE}.{name}", marshal.dumps(_code(inside / f"{name}.py"))) for name in MODULES)
    # Not ``-I``, which ignores PYTHONHASHSEED: the environment is built from scratch, and sys.path is set inside.
    arguments = (binary, "-s", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP)
    base = {"installed_base": sys.base_prefix, "platbase": sys.base_exec_prefix}  # not the virtual environment
    stdlib, platstdlib = (os.path.realpath(sysconfig.get_path(key, vars=base)) for key in ("stdlib", "platstdlib"))
    return Interpreter(
        binary,
        arguments,
        stdlib=stdlib,
        readable=_readable(stdlib, platstdlib),
        readable_roots=(stdlib, sys.base_prefix, "/usr/lib", "/lib", "/dev/null", *ODDMENTS),
        codes=codes,
        path=[path for path in (f"{platstdlib}/lib-dynload", stdlib, platstdlib) if os.path.isdir(path)],
        fake_time=marshal.dumps(_code(inside / "fake_time.py")),
    )


def _code(path: Path) -> CodeType:
    return compile(path.read_text(encoding="utf-8"), path.name, "exec", dont_inherit=True, optimize=2)


def _readable(stdlib: str, platstdlib: str) -> tuple[str, ...]:
    paths = [*_entries(stdlib), *_entries(platstdlib)]
    paths += [str(path) for path in Path(sys.base_prefix, "lib").glob("*.so*")]
    multiarch = getattr(sys.implementation, "_multiarch", "")
    system = [f"/usr/lib/{multiarch}", f"/lib/{multiarch}"] if multiarch else []
    system = [path for path in system if any(Path(path).glob("libc.*"))] or ["/usr/lib", "/lib"]
    paths += [*system, "/usr/lib64", "/lib64", *ODDMENTS]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.exists(path)))


def _entries(stdlib: str) -> list[str]:
    """Entries of the standard library's directory without third-party packages."""
    return [entry.path for entry in os.scandir(stdlib) if entry.name.partition("-")[0] not in NOT_FOR_PROGRAMS
            and entry.name not in NOT_FOR_PROGRAMS]  # fmt: skip
