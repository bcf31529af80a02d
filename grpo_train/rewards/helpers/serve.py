"""Main program of a helper process of a pool: ``python serve.py SCRIPT FD``. Standard library only, but for SCRIPT."""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

MEMORY = 2 << 30
"""Address space limit in bytes: a tower of exponents raises MemoryError instead of exhausting the box's memory."""


def serve_script(script: str, connection: Connection) -> None:
    """Answer JSON messages with the function that ``prepare()`` of ``script`` returns, until the parent has ended.

    An answer may take HELPER_SECONDS (environment) of CPU time. Then the kernel ends this process: SIGPROF with its
    default action works even during one long instruction, and after the parent has died.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the trainer, which saves first
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    seconds = float(os.environ["HELPER_SECONDS"])

    def send(message: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(message).encode())

    try:
        answer = runpy.run_path(script)["prepare"]()
    except Exception as error:  # a library that is not installed
        send({"error": f"{type(error).__name__}: {error}"})
        return
    send({"answer": "ready"})
    while True:
        try:
            question = connection.recv_bytes()
        except EOFError:  # the parent has ended
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            message = {"answer": answer(json.loads(question))}
        except Exception as error:  # whatever sympy raises, RecursionError included
            message = {"error": f"{type(error).__name__}: {error}"[:300]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(message)


if __name__ == "__main__":
    del sys.path[0]  # this directory: its files are not top-level modules
    serve_script(sys.argv[1], Connection(int(sys.argv[2])))
