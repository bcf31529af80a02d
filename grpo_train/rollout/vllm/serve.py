"""vLLM's API server. This file runs in vLLM's own environment, so it imports nothing of this package.

The server ends with the process that started it, which holds the other end of its standard input; then it removes its
directory, whose files may be in memory.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading

FOLDER_VARIABLE = "GRPO_VLLM_FOLDER"
"""Directory of the socket and of the weights that are handed over."""


def _end_with_starter() -> None:
    sys.stdin.buffer.read()
    shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":  # vLLM's processes import this file again
    threading.Thread(target=_end_with_starter, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
