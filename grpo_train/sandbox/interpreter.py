"""Which interpreter runs the programs, and which files it needs to read.

The resolved binary: through a version manager's shim or the links of a virtual environment every start would cost
more, and the environment's packages would be within reach.
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
    module.__builtins__ = dict(__builtins__.__dict__)  # the program may rebind the names in the module itself
    exec(marshal.loads(code), module.__dict__)
module.main(job)
"""
ODDMENTS = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/zero", "/dev/urandom", "/dev/random")
NOT_FOR_PROGRAMS = {"site-packages", "dist-packages", "test", "idlelib", "ensurepip", "lib2to3", "config"}


@dataclass(frozen=True)
class Interpreter:
    """A Python of this process's version and the files that programs need of it."""

    binary: str
    arguments: tuple[str, ...]
    """What comes before the environment-independent bootstrap."""
    stdlib: str
    """The standard library's directory: it may be listed, though not everything in it may be read."""
    readable: tuple[str, ...]
    """Files and directories: the standard library without third-party packages, shared libraries, time zones."""
    readable_roots: tuple[str, ...]
    """A short superset of ``readable``, as prefixes: opening anything else is reported as an attempt."""
    codes: tuple[tuple[str, bytes], ...]
    """The marshalled code of each module that runs inside."""
    path: list[str]
    """``sys.path``: extension modules first, so that a child does not list the whole standard library for one."""
    fake_time: bytes


@lru_cache(maxsize=1)
def interpreter() -> Interpreter:
    """The interpreter that programs run in: the resolved base binary of this process's own."""
    binary = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    inside = Path(__file__).parent / "inside"
    codes = tuple((f"{INSIDE}.{name}", marshal.dumps(_code(inside / f"{name}.py"))) for name in MODULES)
    # ``-I`` would also ignore PYTHONHASHSEED; the environment is made from nothing, and the path is cleaned inside.
    arguments = (binary, "-s", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP)
    base = {"installed_base": sys.base_prefix, "platbase": sys.base_exec_prefix}  # not a virtual environment's
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
    """What the standard library's directory holds but for the packages of others, which can lie in it."""
    return [entry.path for entry in os.scandir(stdlib) if entry.name.partition("-")[0] not in NOT_FOR_PROGRAMS
            and entry.name not in NOT_FOR_PROGRAMS]  # fmt: skip
