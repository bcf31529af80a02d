"""Runs one job in a fresh interpreter that locks itself down first.

A job's mode is ``program`` (a script with its standard input and output), ``tests`` (a solution, then the setup, then
for each test its statements and the calls whose values are wanted) or ``judge`` (expressions of a data set over
values that a program returned; no text of a model is in that process).

What is reported goes through one pipe as records: the job's 8 random bytes, one letter, a 4-byte index, a 4-byte
length, the content. ``R`` ready, ``L`` a layer could not be put in force, ``V`` a value, ``X`` what was raised instead
(kind, tab, text), ``P`` how the program ended (the same), ``A`` the first attempt of a kind, ``D`` the end with the
number of attempts of each kind.
"""

import marshal
import posix
import sys

from grpo_train.sandbox.inside.encode import Unsupported, encode
from grpo_train.sandbox.inside.kinds import ENUM, put_together
from grpo_train.sandbox.inside.lockdown import JOB_FD, RESULT_FD, LockdownError, lock_down

TYPE_CHECKING = False  # ``typing`` itself would cost every child a millisecond
if TYPE_CHECKING:
    from typing import Any

_write, _exit = posix.write, posix._exit


class Reporter:
    """Writes records, and counts what the program attempted."""

    def __init__(self, tag: bytes, readable: tuple[str, ...]) -> None:
        self.tag = tag
        self.readable = readable
        self.attempts: dict[str, int] = {}

    def record(self, letter: bytes, index: int, content: bytes) -> None:
        left = self.tag + letter + index.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content
        while left:
            left = left[_write(RESULT_FD, left) :]

    def failure(self, letter: bytes, index: int, kind: str, text: str) -> None:
        self.record(letter, index, f"{kind}\t{text}"[:500].encode("utf-8", "replace"))

    def done(self) -> None:
        counts = ",".join(f"{kind}={count}" for kind, count in self.attempts.items())
        self.record(b"D", 0, counts.encode())

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """An audit hook: an indicator of what was attempted, never a layer of defence."""
        kind = KINDS.get(event)
        if kind is None:
            kind = KINDS.get(event.partition(".")[0])
            if kind is None:
                return
        if kind == "file":
            path = arguments[0] if arguments else None
            if not isinstance(path, str) or (".." not in path and (path[:1] != "/" or path.startswith(self.readable))):
                return
        elif event == "socket.__new__" and len(arguments) > 1 and arguments[1] == 1:
            return  # asyncio wakes itself through a pair of connected Unix sockets, which is allowed
        count = self.attempts.get(kind, 0) + 1
        self.attempts[kind] = count
        if count == 1:
            self.record(b"A", 0, kind.encode())


KINDS = {
    "socket": "network",
    "subprocess": "process", "os.system": "process", "os.exec": "process", "os.posix_spawn": "process",
    "os.spawn": "process", "os.fork": "process", "os.forkpty": "process", "pty": "process",
    "os.kill": "signal", "os.killpg": "signal", "signal.pthread_kill": "signal",
    "open": "file", "os.listdir": "file", "os.scandir": "file", "os.remove": "file", "os.rename": "file",
    "os.mkdir": "file", "os.rmdir": "file", "os.chmod": "file", "os.chown": "file", "os.link": "file",
    "os.symlink": "file", "os.truncate": "file", "os.utime": "file", "os.chdir": "file",
    "ctypes": "native", "resource": "limits",
    "gc.get_objects": "introspection", "gc.get_referrers": "introspection", "sys._current_frames": "introspection",
}  # fmt: skip


def main(job: "dict[str, Any]") -> None:
    """Locks down, runs the job, reports, and ends the process without running anything more."""
    report = Reporter(job["tag"], (job["plan"]["directory"], *job["readable"]))
    try:
        lock_down(job["plan"])
    except LockdownError as error:
        report.failure(b"L", 0, *error.args)
        _exit(1)
    posix.close(JOB_FD)
    _leave_no_trace(job)
    report.record(b"R", 0, b"")
    sys.addaudithook(report.audit)
    run = {"program": run_program, "tests": run_tests, "judge": run_judge}[job["mode"]]
    try:
        run(job, report)
        report.done()
    finally:
        _exit(0)


def _leave_no_trace(job: "dict[str, Any]") -> None:
    """Makes the interpreter look like one that was started on ``program.py``."""
    for name in job["modules"]:
        del sys.modules[name]
    sys.argv[:] = ["program.py"]
    sys.orig_argv[:] = ["python", "program.py"]
    builtins = sys.modules["builtins"]
    builtins.exit = builtins.quit = _quit  # type: ignore[attr-defined]  # as ``site`` does, which is not loaded
    if job.get("fake_time") is not None:
        exec(marshal.loads(job["fake_time_code"]), {"start": job["fake_time"], "__name__": "fake_time"})


def _quit(code: object = None) -> None:
    raise SystemExit(code)


def _failure(error: BaseException) -> tuple[str, str]:
    """A kind and one line of text for what was raised; the exception's own methods are trusted with nothing."""
    kind = type(error)
    try:
        text = f"{kind.__name__}: {str(error)[:200]}"
    except BaseException:
        text = kind.__name__
    if issubclass(kind, SystemExit):
        return "exit", text
    if issubclass(kind, MemoryError):
        return "memory", text
    return "exception", text


def _load(source: str, name: str, namespace: "dict[str, Any]", kind: str | None = None) -> tuple[str, str] | None:
    """Compiles and runs a text; None, or the kind and text of its failure (``kind`` for any exception)."""
    usual = kind or "syntax_error"
    try:
        code = compile(source, name, "exec", dont_inherit=True)
        usual = kind or "exception"
        exec(code, namespace)
    except BaseException as error:
        own, text = _failure(error)
        return usual if own == "exception" else own, text
    return None


def _module(name: str) -> "dict[str, Any]":
    """The names of a new module, which is imported as ``name`` and has the interpreter's own built-in names."""
    module = sys.modules[name] = type(sys)(name)
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    return module.__dict__


def run_tests(job: "dict[str, Any]", report: Reporter) -> None:
    """The solution, the setup, then each test's steps; a value or a failure is reported for each wanted index."""
    namespace = _module("solution")  # dataclasses and pickle look a class's module up
    failed = _load(job["source"], "<solution>", namespace)
    if failed is None and job["setup"]:
        failed = _load(job["setup"], "<setup>", namespace, "setup_failed")
    if failed is not None:
        report.failure(b"P", 0, *failed)
        return
    report.failure(b"P", 0, "ok", "")
    for steps in job["tests"]:
        failed = None
        for index, code in steps:
            if index is None:
                failed = failed or _load(code, "<test>", namespace, "test_failed")
                continue
            if failed is None:
                _report_value(code, namespace, report, index)
            else:
                report.failure(b"X", index, *failed)


def run_judge(job: "dict[str, Any]", report: Reporter) -> None:
    """Truth values of a data set's expressions over plain values."""
    for index, (code, imports, values) in enumerate(job["expressions"]):
        namespace: dict[str, Any] = {}
        for statement in imports:
            exec(statement, namespace)
        members: dict[Any, Any] = {}
        for name, (kind, is_packed, value) in values.items():
            if is_packed:
                value = unpacked(value, members)
            if kind == "iterator":
                value = iter(value)
            elif kind == "view":
                value = _view(value)
            namespace[name] = value
        _report_value(f"bool({code})", namespace, report, index)


def unpacked(value: "Any", members: "dict[Any, Any]") -> "Any":
    """What ``values.packed`` made plain data of; equal ``members`` of an enumeration are one object."""
    if type(value) is not tuple:
        return value
    name, fields = value
    whole = put_together(name, [unpacked(field, members) for field in fields])
    return members.setdefault(whole, whole) if name == ENUM else whole


def _view(items: "list[Any]") -> "Any":
    """What has these items in this order and is equal to a set of them, as keys and items of a dict are."""
    try:
        return dict.fromkeys(items).keys()
    except TypeError:  # (key, [value])
        return dict(items).items()


def _report_value(code: str, namespace: "dict[str, Any]", report: Reporter, index: int) -> None:
    try:
        value = eval(compile(code, "<test>", "eval", dont_inherit=True), namespace)
        content = encode(value)
    except Unsupported as error:
        report.failure(b"X", index, "unsupported_value", str(error))
    except BaseException as error:
        report.failure(b"X", index, *_failure(error))
    else:
        report.record(b"V", index, content)


def run_program(job: "dict[str, Any]", report: Reporter) -> None:
    """The text as ``__main__``; like a script it waits for its threads and runs its exit handlers."""
    namespace = _module("__main__")
    namespace["__file__"] = "program.py"
    try:
        code = compile(job["source"], "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError, UnicodeError) as error:
        return _end(report, "syntax_error", error)
    except MemoryError as error:
        return _end(report, "memory", error)
    status = "ok"
    raised: BaseException | None = None
    try:
        exec(code, namespace)
    except SystemExit as error:
        if error.code not in (None, 0):
            status, raised = "runtime_error", error
    except MemoryError as error:
        status, raised = "memory", error
    except BaseException as error:
        status, raised = "runtime_error", error
    for name, function in (("threading", "_shutdown"), ("atexit", "_run_exitfuncs")):
        try:
            if name in sys.modules:
                getattr(sys.modules[name], function)()
        except BaseException as error:
            status, raised = "runtime_error", error
    return _end(report, status, raised)


def _end(report: Reporter, status: str, raised: BaseException | None) -> None:
    """Shows what was raised on standard error, flushes, and reports the status."""
    text = ""
    if raised is not None:
        text = _failure(raised)[1]
        try:
            trace = raised.__traceback__
            BaseException.with_traceback(raised, trace.tb_next if trace is not None else None)
            sys.__excepthook__(type(raised), raised, raised.__traceback__)
        except BaseException:
            pass
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:
            pass
    report.failure(b"P", 0, status, text)
