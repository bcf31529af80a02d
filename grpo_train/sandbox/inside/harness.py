"""Run one job in a fresh interpreter that locks itself down first.

A job's mode is ``program`` (a script with standard input and output), ``tests`` (a solution, the setup, then each
test's statements and expressions) or ``judge`` (expressions of a dataset over values that a program returned; that
process contains no model-written text).

Reports go through one pipe as records: the job's 8 random bytes, one letter, a 4-byte index, a 4-byte length, the
content. ``R`` ready, ``L`` a layer failed, ``V`` a value, ``X`` an exception instead of a value (kind, tab, text),
``P`` how the program ended (same format), ``A`` the first attempt of a kind, ``D`` done, with attempts by kind.
"""

import marshal
import posix
import sys

from grpo_train.sandbox.inside.encode import Unsupported, encode_value
from grpo_train.sandbox.inside.kinds import ENUM, assemble
from grpo_train.sandbox.inside.lockdown import JOB_FD, RESULT_FD, LockdownError, lock_down

TYPE_CHECKING = False  # ``typing`` itself would cost every child a millisecond
if TYPE_CHECKING:
    from typing import Any

_write, _exit = posix.write, posix._exit


class Reporter:
    """Writer of records, and counter of the program's attempts."""

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
        """Audit hook that counts attempts: an indicator, not a layer of defense."""
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
            return  # a pair of Unix sockets, which asyncio uses, is allowed
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
    """Lock down, run the job, report, and exit without running anything else."""
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
    run = {"program": run_program_job, "tests": run_tests_job, "judge": run_judge}[job["mode"]]
    try:
        run(job, report)
        report.done()
    finally:
        _exit(0)


def _leave_no_trace(job: "dict[str, Any]") -> None:
    """Make the interpreter look as if it was started with ``program.py``."""
    for name in job["modules"]:
        del sys.modules[name]
    sys.argv[:] = ["program.py"]
    sys.orig_argv[:] = ["python", "program.py"]
    builtins = sys.modules["builtins"]
    builtins.exit = builtins.quit = _quit  # type: ignore[attr-defined]  # as in ``site``, which is not loaded
    if job.get("fake_time") is not None:
        exec(marshal.loads(job["fake_time_code"]), {"start": job["fake_time"], "__name__": "fake_time"})


def _quit(code: object = None) -> None:
    raise SystemExit(code)


def _failure(error: BaseException) -> tuple[str, str]:
    """Kind and one-line text of an exception, whose own methods are not trusted."""
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
    """Compile and run source text; None, or (kind, text) of its failure. ``kind`` overrides the kind of exceptions."""
    default = kind or "syntax_error"
    try:
        code = compile(source, name, "exec", dont_inherit=True)
        default = kind or "exception"
        exec(code, namespace)
    except BaseException as error:
        found, text = _failure(error)
        return default if found == "exception" else found, text
    return None


def _module(name: str) -> "dict[str, Any]":
    """Namespace of a new module, registered as ``name``, with the interpreter's built-in names."""
    module = sys.modules[name] = type(sys)(name)
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    return module.__dict__


def run_tests_job(job: "dict[str, Any]", report: Reporter) -> None:
    """Run the solution, the setup and each test's steps; report a value or a failure for each index."""
    namespace = _module("solution")  # dataclasses and pickle look up a class's module
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
    """Report truth values of a dataset's expressions over plain values."""
    for index, (code, imports, values) in enumerate(job["expressions"]):
        namespace: dict[str, Any] = {}
        for statement in imports:
            exec(statement, namespace)
        members: dict[Any, Any] = {}
        for name, (kind, is_packed, value) in values.items():
            if is_packed:
                value = unpack(value, members)
            if kind == "iterator":
                value = iter(value)
            elif kind == "view":
                value = _view(value)
            namespace[name] = value
        _report_value(f"bool({code})", namespace, report, index)


def unpack(value: "Any", members: "dict[Any, Any]") -> "Any":
    """Reverse ``values.pack_value``; equal enumeration members become one object, through the cache ``members``."""
    if type(value) is not tuple:
        return value
    name, fields = value
    whole = assemble(name, [unpack(field, members) for field in fields])
    return members.setdefault(whole, whole) if name == ENUM else whole


def _view(items: "list[Any]") -> "Any":
    """A dict view with these items in this order."""
    try:
        return dict.fromkeys(items).keys()
    except TypeError:  # unhashable: items like (key, [value])
        return dict(items).items()


def _report_value(code: str, namespace: "dict[str, Any]", report: Reporter, index: int) -> None:
    try:
        value = eval(compile(code, "<test>", "eval", dont_inherit=True), namespace)
        content = encode_value(value)
    except Unsupported as error:
        report.failure(b"X", index, "unsupported_value", str(error))
    except BaseException as error:
        report.failure(b"X", index, *_failure(error))
    else:
        report.record(b"V", index, content)


def run_program_job(job: "dict[str, Any]", report: Reporter) -> None:
    """Run the source as ``__main__``; like a script it waits for threads and runs exit handlers."""
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
    """Print the exception to standard error, flush, and report the status."""
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
