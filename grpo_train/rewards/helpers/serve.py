"""A helper process's side: answer questions until nobody asks. Imports the standard library only."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 2 << 30
"""Address space in bytes: a tower of exponents ends in a MemoryError, not in a box without memory."""


def serve(prepare: Callable[[], Callable[[Any], Any]]) -> None:
    """Answer one JSON line with another until standard input ends.

    An answer may take HELPER_SECONDS (a variable) of processor time. Then the kernel ends this process: SIGPROF with
    its default action works even inside one long instruction, and when the parent is gone.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the trainer, which saves first
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    seconds = float(os.environ["HELPER_SECONDS"])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer

    def tell(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        answer = prepare()
    except Exception as error:
        tell({"error": f"{type(error).__name__}: {error}"})
        return
    tell({"answer": "ready"})
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            message = {"answer": answer(json.loads(line))}
        except (Exception, RecursionError) as error:
            message = {"error": f"{type(error).__name__}: {error}"[:300]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        tell(message)
