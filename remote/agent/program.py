"""The agent as a program: reads frames on standard input, writes frames on standard output.

    python -I HASH.pyz serve [--silence SECONDS]

It exits at the end of its input, and after a silence, because a cut network does not end the input.
"""

from __future__ import annotations

import os
import sys

from grpo_train.run_dir.clock import CLOCK
from remote.agent.box import clean_environment
from remote.agent.outbox import Outbox
from remote.agent.serve import Agent, Handlers, as_remote_error
from remote.protocol import AGENT_SILENCE_S, ProtocolError


def main(arguments: list[str]) -> int:
    """Serve one client and exit the process; returns only for a usage error."""
    if arguments[:1] != ["serve"]:
        print("usage: python -I AGENT.pyz serve [--silence SECONDS]", file=sys.stderr)
        return 2
    silence_s = float(arguments[2]) if arguments[1:2] == ["--silence"] else AGENT_SILENCE_S
    source, sink = _take_streams()
    environment = clean_environment(os.environ)  # without a UTF-8 locale tmux's output cannot be read
    os.environ.clear()
    os.environ.update(environment)
    agent = Agent(source, Outbox(sink, CLOCK), silence_s, CLOCK, handlers)
    try:
        agent.serve()
        if agent.copies is not None:
            from remote.agent import files

            files.serve(agent.copies, source, sink, as_remote_error)
    except ProtocolError as error:
        print(f"agent: {error}", file=sys.stderr)
    agent.finish()
    sys.stderr.flush()
    os._exit(0)  # threads that hang in a dead pipe or mount must not keep the process alive


def _take_streams() -> tuple[int, int]:
    """Move the streams of frames aside: prints go to stderr, and children can neither read nor write frames."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return source, sink


def handlers() -> Handlers:
    """The table, imported with the first request: the hello does not wait for it."""
    from remote.agent.operations import HANDLERS

    return HANDLERS
