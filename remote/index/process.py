"""The process that makes indexes and answers questions about them: a child of the agent, of lower priority.

    python -I HASH.pyz index

It reads requests and writes answers, one JSON object a line: ``{"id": 1, "op": "series", "root": …, "run": …,
"follow_links": false, "params": {…}}`` and ``{"id": 1, "result": {…}}`` or ``{"id": 1, "error": {…}}``. One thread does
both: it indexes in short slices while no request waits. It exits at the end of its input, when nothing was asked
for a while, and when an answer takes too long.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import code_of
from grpo_train.run_dir.machine import not_readable
from remote.agent import compiled
from remote.index import store
from remote.index.answers import IndexAnswers, within
from remote.protocol import OPERATIONS, RemoteError
from remote.protocol.check import read_request

IDLE_S = 300.0
SLICE_S = 0.4
"""An index in progress is saved this often, and when a request arrives."""
NICENESS = 5
LONGEST_S = 20
"""An answer that takes longer ends the process, whatever it does: a pattern may take forever, without listening."""


def main(arguments: list[str], clock: Clock = CLOCK) -> int:
    """Serve until the input ends. ``arguments``: ``index [LONGEST_SECONDS]``."""
    longest_s = int(arguments[1]) if len(arguments) > 1 else LONGEST_S
    source, sink = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # stray prints must not mix with the answers
    os.umask(0o077)
    os.nice(NICENESS)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers = IndexAnswers(store.places(Path(sys.argv[0])), clock)
    pending, heard, answered, stored = b"", clock.monotonic(), False, False
    while True:
        if answered and not stored and not answers.is_busy:
            compiled.store_compiled()  # the next one starts in half the time
            stored = True
        signal.alarm(0)
        ready = clock.select([source], 0.0 if answers.is_busy else IDLE_S)
        signal.alarm(longest_s)
        if ready:
            data = os.read(source, 1 << 16)
            if not data:
                return 0
            heard = clock.monotonic()
            *lines, pending = (pending + data).split(b"\n")
            try:
                for line in lines:
                    signal.alarm(longest_s)
                    _write(sink, _answer(answers, json.loads(line)))
            except BrokenPipeError:
                return 0
            answered = True
        elif answers.is_busy:
            answers.work(within(SLICE_S, clock, lambda: not select.select([source], [], [], 0)[0]))
        elif clock.monotonic() - heard >= IDLE_S:
            return 0


def _answer(answers: IndexAnswers, request: dict[str, Any]) -> bytes:
    answer: dict[str, Any] = {"id": request["id"]}
    try:
        asked = read_request(OPERATIONS[request["op"]].request, request["params"])
        root, run = Path(request["root"]), Path(request["run"])
        answer["result"] = answers.answer(request["op"], root, run, bool(request["follow_links"]), asked)
    except Exception as error:
        answer["error"] = _as_error(error).to_json()
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"


def _as_error(error: Exception) -> RemoteError:
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, PermissionError) and error.filename:
        return RemoteError("not_ours", not_readable(Path(os.fsdecode(error.filename))))
    if isinstance(error, OSError):
        return RemoteError(code_of(error), f"{error.filename or 'the log'}: {error.strerror or error}")
    traceback.print_exc()
    return RemoteError("internal", f"the index failed: {type(error).__name__}: {error}", "please report this")


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
