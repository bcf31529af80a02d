"""The ``SSH_ASKPASS`` program: passes a question of ssh to the app and prints the app's answer.

    python -I -S askpass.py PROMPT

A script, not a module of the app: ssh starts it for every question, so it imports little. ``GRPO_ASKPASS`` names the
app's Unix socket. Exit status 1 means that the question was not answered.
"""

from __future__ import annotations

import json
import os
import socket
import sys

LONGEST = 65_536


def main(argv: list[str]) -> int:
    """Ask the app; returns the exit status."""
    question = {"prompt": " ".join(argv[1:])[: LONGEST // 8], "hint": os.environ.get("SSH_ASKPASS_PROMPT", "")}
    try:
        with socket.socket(socket.AF_UNIX) as app:
            app.connect(os.environ["GRPO_ASKPASS"])
            app.sendall(json.dumps(question).encode() + b"\n")
            with app.makefile("rb") as replies:
                reply = json.loads(replies.readline(LONGEST) or b"{}")
    except (OSError, KeyError, ValueError):
        return 1
    answer = reply.get("answer")
    if not isinstance(answer, str):
        return 1
    print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
