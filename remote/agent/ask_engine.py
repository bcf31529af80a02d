"""One way to ask the engine: a command with ``--json``, bounded in time and size."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

from remote.agent.context import BoxContext
from remote.agent.engine import USAGE_ERROR, find_engine, running_version
from remote.protocol import RemoteError
from remote.protocol.versions import OLDEST, UNKNOWN

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
