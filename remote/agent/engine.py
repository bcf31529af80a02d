"""The engine of this box: its command, its version, whether it runs; one way to ask it, bounded in time and size.

An engine is examined by running it: a script may be executable while its interpreter is not.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from grpo_train.run_dir import open_run
from grpo_train.run_dir.sessions import EXECUTE
from remote.agent.box import BoxContext
from remote.protocol import RemoteError
from remote.protocol.box import MAX_PAGE, ReportReply, ReportRequest, pack_page
from remote.protocol.frames import OLDEST, UNKNOWN, EngineVersion

COMMAND = "grpo-train"
PROBE_S = 25.0
"""Limit on one run of the user's activation snippet or of the engine: a cold network disk is slow."""
DEVICE_PROBE_S = 40.0
"""The engine imports torch on a machine with a GPU."""
ACTIVATED = "'activate' in boxes.yaml"
CHECKOUT = "the checkout's .venv"
USAGE_ERROR = 2
_INTERPRETER = re.compile(rb"#!\s*(\S+).*\n(?:'''exec' \"?([^\s\"]+))?")
"""pip and uv write an interpreter with a long path into the second line."""
SLOW_S = 60.0
_examining = threading.Lock()
_slow: dict[tuple[str, ...], float] = {}
"""Command to the time at which it did not answer."""
_examined: dict[tuple[str, ...], tuple[str, list[object] | None, EngineVersion]] = {}
"""Command to the path that its activation leads to, the identity of its files, and its version."""


@dataclass(frozen=True)
class Engine:
    """How the engine is called on this box."""

    argv: list[str]
    reason: str
    """Why this command."""


def find_engine(box: BoxContext) -> Engine:
    """The engine's command. Raises RemoteError ``no_engine`` with the command that installs it."""
    settings = box.settings
    if settings.engine:
        argv = [os.path.expanduser(settings.engine[0]), *settings.engine[1:]]
        if not shutil.which(argv[0]):
            raise RemoteError(
                "no_engine",
                f"the engine command {argv[0]} does not exist on this box",
                "correct 'engine' in boxes.yaml, or remove it to use REPO/.venv or PATH",
            )
        # The app's own machine needs no entry in boxes.yaml: its engine is the one beside the app.
        beside = box.repo is not None and argv == [str(_script(box.repo))]
        return Engine(argv, CHECKOUT if beside else "the settings of this box")
    if settings.activate:
        bash = shutil.which("bash")
        if not bash:
            raise RemoteError("no_engine", "'activate' needs bash, which is not installed on this box", "install bash")
        return Engine([bash, "-c", f'{settings.activate} && exec "$@"', "--", COMMAND], ACTIVATED)
    if box.repo:
        script = _script(box.repo)
        if os.access(script, os.X_OK):
            return Engine([str(script)], CHECKOUT)
    if found := shutil.which(COMMAND):
        return Engine([found], "PATH")
    raise not_installed(box)


def _script(repo: Path) -> Path:
    return repo / ".venv" / "bin" / COMMAND


def not_installed(box: BoxContext) -> RemoteError:
    """The error for a box without the engine."""
    if box.repo and box.repo.is_dir():
        return RemoteError(
            "no_engine", f"the engine is not installed in {box.repo}", f"on the box: cd {box.repo} && make setup-box"
        )
    reason = f"the checkout {box.repo} does not exist" if box.repo else "no checkout is configured for this box"
    up = "on your machine, in a checkout of grpo-tui: grpo-tui up --box NAME"
    return RemoteError(
        "no_engine",
        f"the engine is not installed: {reason}, and {COMMAND} is not on PATH",
        up if box.is_synced else f"correct 'repo' in boxes.yaml, or set 'code: sync' there and run, {up}",
    )


# ---------------------------------------------------------------------------------------------------------- version


def installed_version(box: BoxContext) -> EngineVersion:
    """Version read from the engine's files, without running it; UNKNOWN where they are not found.

    An environment's metadata is not asked: after ``git pull`` an editable install still names the old version.
    """
    try:
        engine = find_engine(box)
        by_snippet = box.settings.activate and not box.settings.engine
        folder = (None if by_snippet else _code_folder(engine.argv[0])) or box.repo
        return _version_in(folder) if folder else UNKNOWN
    except (OSError, ValueError, RemoteError):
        return UNKNOWN


def running_version(box: BoxContext, engine: Engine) -> EngineVersion:
    """Version that the engine reports when run; asked again only when its files change.

    Raises RemoteError: ``no_engine`` when it does not run, with exit status and first line of stderr; ``slow_engine``
    after PROBE_S, and for SLOW_S without asking again: a form must not wait for it each time.
    """
    with _examining:
        command = tuple(engine.argv)
        if box.clock.monotonic() - _slow.get(command, -SLOW_S) < SLOW_S:
            raise _slow_engine()
        path, identity, version = _examined.pop(command, ("", None, UNKNOWN))
        if identity is None or identity != _identity(engine, path):
            path, version = _examine(box, engine)
            known = path or engine.reason != ACTIVATED
            identity = _identity(engine, path) if known else None
        _examined[command] = path, identity, version
        return version


def _examine(box: BoxContext, engine: Engine) -> tuple[str, EngineVersion]:
    """Run ``grpo-train --version``; returns the path that ``activate`` leads to ("" without it), and the version.

    Version 0.1.0 does not know the option: its usage error names it.
    """
    by_snippet = engine.reason == ACTIVATED
    argv = [*engine.argv, "--version"]
    if by_snippet:  # the path that it leads to is printed, too
        find = f'{{ command -v {COMMAND} || {{ echo "{COMMAND}: not found after activate" >&2; exit 127; }}; }}'
        argv[2] = f'{box.settings.activate} && {find} && exec "$@"'
    hint = f"run it on the box: {shlex.join([*engine.argv, '--version'])}"
    if by_snippet:
        hint = f"correct 'activate' in boxes.yaml, or {not_installed(box).hint}"
    try:
        done = run_engine(box, [*EXECUTE, *argv], PROBE_S)
    except subprocess.TimeoutExpired as failure:
        _slow[tuple(engine.argv)] = box.clock.monotonic()
        raise _slow_engine() from failure
    path = next((line for line in done.stdout.splitlines() if os.path.isfile(line)), "") if by_snippet else ""
    if done.returncode == USAGE_ERROR and "--version" in done.stderr:
        return path, OLDEST
    if done.returncode:
        first = next(iter((done.stderr or done.stdout).strip().splitlines()), "no output")
        raise RemoteError("no_engine", f"the engine does not run (exit status {done.returncode}): {first}", hint)
    match = re.search(r"^grpo-train (\S+) \(format (\d+)\)$", done.stdout, re.MULTILINE)
    return path, EngineVersion(match[1], int(match[2])) if match else UNKNOWN


def _slow_engine() -> RemoteError:
    hint = "a network disk may be slow; run it on the box"
    return RemoteError("slow_engine", f"the engine did not answer --version within {PROBE_S:.0f} s", hint)


def _identity(engine: Engine, path: str) -> list[object]:
    """Facts that change with the files of a command: scripts, their interpreters, and what these point to."""
    files = {word for word in [path, *map(str, map(shutil.which, engine.argv)), *engine.argv] if os.path.isfile(word)}
    for file in sorted(files):
        with suppress(OSError), open(file, "rb") as script:
            if interpreter := _INTERPRETER.match(script.read(1024)):
                files.add(os.fsdecode(interpreter[2] or interpreter[1]))
    facts: list[object] = []
    for file in sorted(files | {os.path.realpath(file) for file in files}):
        try:
            found = os.stat(file)
        except OSError as error:
            facts.append((file, error.errno))
        else:
            facts.append((file, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return facts


def training_device(box: BoxContext, engine: Engine) -> str:
    """The device that the engine trains on; "" from an engine that cannot tell (0.1.0).

    Raises RemoteError ``no_gpu`` with the engine's reason and the fix.
    """
    try:
        done = run_engine(box, [*engine.argv, "device"], DEVICE_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RemoteError("no_gpu", f"the engine does not report its device: {error}") from error
    if done.returncode == USAGE_ERROR:
        return ""
    if done.returncode:
        raise RemoteError("no_gpu", last_line(done).removeprefix("error: "))
    return done.stdout.strip()


def run_engine(box: BoxContext, argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command of the engine to its end. Raises OSError and subprocess.TimeoutExpired."""
    folder = box.directory if box.directory.is_dir() else "/"
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, text=True, errors="replace", cwd=folder
    )


def _code_folder(command: str) -> Path | None:
    """The folder that holds ``grpo_train`` for a command of an environment: its site-packages, or a checkout."""
    path = Path(shutil.which(command) or command)
    for prefix in (path.parent.parent, path.resolve().parent.parent):  # `uv tool` links commands into ~/.local/bin
        for packages in sorted(prefix.glob("lib/python3*/site-packages")):
            for file in sorted(packages.glob("grpo_tui-*.dist-info/direct_url.json")):
                source = json.loads(file.read_text(encoding="utf-8"))
                if (source.get("dir_info") or {}).get("editable"):
                    return Path(unquote(urlsplit(source["url"]).path))
            if (packages / "grpo_train").is_dir():
                return packages
    return None


def _version_in(folder: Path) -> EngineVersion:
    package = folder / "grpo_train"
    if (package / "run_dir.py").is_file():
        return OLDEST  # a package in later versions
    text = (package / "run_dir" / "version.py").read_text(encoding="utf-8")
    version = re.search(r'^VERSION = "([^"]+)"$', text, re.MULTILINE)
    number = re.search(r"^FORMAT = (\d+)$", text, re.MULTILINE)
    return EngineVersion(version[1], int(number[1])) if version and number else UNKNOWN


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


MAX_BYTES = 8 << 20
"""Of an answer."""
MAX_ERROR = 64 << 10
"""Of stderr, its end."""
STORE_WAIT_S = 150.0
"""For a request that asks a store: the engine gives up much later, and the user is not made to wait for that."""


def ask_engine(box: BoxContext, arguments: list[str], wait_s: float, *, root: bool = True, text: str = "") -> Any:
    """What ``grpo-train ARGUMENTS --json --root ROOT`` prints as JSON, whatever its exit status.

    ``root``: pass that; ``text``: its standard input.

    Raises RemoteError with the engine's own code and message where that is ``{"error": {"code", "message"}}``, else
    ``no_answer`` (too slow, too long, or no JSON), ``old_engine`` (it does not know the command), or ``no_engine``.
    """
    command = arguments[0]
    argv = [*find_engine(box).argv, *arguments, "--json", *(["--root", str(box.root)] if root else [])]
    try:
        code, output, errors = _run(argv, box, wait_s, text)
    except subprocess.TimeoutExpired:
        raise RemoteError("no_answer", f"grpo-train {command} did not answer within {wait_s:.0f} s") from None
    except OSError as error:
        raise RemoteError("no_answer", f"grpo-train {command} could not be started: {error}") from error
    answer = _json_in(output)
    if answer is None:
        if code == USAGE_ERROR:
            raise _old_engine(box)
        last = (errors.strip() or output.strip() or f"exit status {code}").splitlines()[-1].removeprefix("error: ")
        raise RemoteError("no_answer", f"grpo-train {command}: {last[:500]}")
    refusal = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(refusal, dict):
        raise RemoteError(str(refusal.get("code")), str(refusal.get("message")))
    return answer


def _old_engine(box: BoxContext) -> RemoteError:
    """The refusal of a command that the engine does not know, with the command that upgrades it."""
    version = UNKNOWN
    with suppress(RemoteError):
        version = running_version(box, find_engine(box))
    engine = f"box engine {version.version}" if version.version else "the engine on this box"
    return RemoteError("old_engine", f"{engine} is too old for this", OLDEST.upgrade_hint(str(box.repo or "")))


def _run(argv: list[str], box: BoxContext, wait_s: float, text: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr). Raises OSError, subprocess.TimeoutExpired; RemoteError for too much output."""
    folder = box.directory if box.directory.is_dir() else "/"
    pipe = subprocess.PIPE
    deadline = time.monotonic() + wait_s
    with (
        tempfile.TemporaryFile() as given,
        subprocess.Popen(argv, stdin=_filled(given, text), stdout=pipe, stderr=pipe, cwd=folder) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            output, errors = bytearray(), bytearray()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ, output)
                selector.register(process.stderr, selectors.EVENT_READ, errors)
                while selector.get_map():
                    if (left := deadline - time.monotonic()) <= 0:
                        raise subprocess.TimeoutExpired(argv, wait_s)
                    for key, _ in selector.select(left):
                        data = os.read(key.fd, 1 << 16)
                        if not data:
                            selector.unregister(key.fileobj)
                        key.data.extend(data)
                    if len(output) > MAX_BYTES:
                        raise RemoteError("no_answer", f"the answer of grpo-train has more than {MAX_BYTES:,} bytes")
                    del errors[:-MAX_ERROR]
            code = process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            process.kill()
    return code, output.decode(errors="replace"), errors.decode(errors="replace")


def _filled(file: IO[bytes], text: str) -> IO[bytes]:
    """A file with a text, to be read from its beginning: a pipe would block on a command that does not read."""
    file.write(text.encode())
    file.seek(0)
    return file


def _json_in(output: str) -> Any:
    """The JSON at the end of an output, after what the user's activation printed; None without one."""
    start = 0
    while start < len(output):
        if output[start] in "{[":
            try:
                return json.loads(output[start:])
            except (ValueError, RecursionError):
                pass
        start = output.find("\n", start) + 1 or len(output)
    return None


WAIT_S = 150.0


def report(box: BoxContext, request: ReportRequest) -> ReportReply:
    """Raises RemoteError ``no_report`` with what the engine said."""
    names = [open_run(box.root, run).name for run in request.runs]
    with tempfile.TemporaryDirectory(prefix="grpo-report-") as folder:
        file = Path(folder) / "report.html"
        argv = [*find_engine(box).argv, "report", "--root", str(box.root), "-o", str(file)]
        if request.price is not None:
            argv += ["--price", f"{request.price:.15g}"]
        try:
            done = run_engine(box, [*argv, "--", *names], WAIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RemoteError("no_report", f"the engine did not make the report: {error}") from error
        if done.returncode == USAGE_ERROR:
            hint = "update it to the version of the app"
            raise RemoteError("no_report", "the engine on this box is too old to make a report", hint)
        if done.returncode or not file.is_file():
            raise RemoteError(
                "no_report", f"the engine did not make the report: {last_line(done).removeprefix('error: ')}"
            )
        if file.stat().st_size > MAX_PAGE:
            raise RemoteError("too_large", f"the report has {file.stat().st_size:,} bytes; compare fewer runs")
        return {"page": pack_page(file.read_bytes())}
