"""A line of constant delay in front of a port, in a process of its own: ``Line(port, 0.08, trace).port``.

Each byte arrives half a round trip after it was sent, whatever else is under way: unlike the fault proxy's delay, one
chunk does not wait for another. Nothing is lost, and connecting itself takes no time. ``bytes_per_s`` limits the speed
of each direction; 0 = no limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True)
class Chunk:
    """Bytes that entered the line."""

    at: float
    """``time.monotonic()``."""
    back: bool
    """From the box."""
    size: int


class Line:
    """The process; ``chunks`` are those of every connection so far."""

    def __init__(self, target_port: int, round_trip_s: float, trace: Path, bytes_per_s: float = 0.0) -> None:
        self._trace = trace
        trace.write_text("")
        argv = [sys.executable, __file__, str(target_port), str(round_trip_s / 2), str(trace), str(bytes_per_s)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def chunks(self) -> list[Chunk]:
        return [Chunk(*json.loads(line)) for line in self._trace.read_text().splitlines()]

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.communicate()  # it ends with its input


def round_trips(chunks: Sequence[Chunk], round_trip_s: float, until: float) -> int:
    """Round trips in a row before ``until``: the longest chain in which each side waited for what the other had sent.

    Computing does not count, however long it takes.
    """
    way = 0.99 * round_trip_s / 2  # the line may be a tick early
    chains: list[tuple[Chunk, int]] = []
    for chunk in chunks:
        if chunk.back and chunk.at + way > until:
            continue
        heard = [length for other, length in chains if other.back is not chunk.back and other.at + way <= chunk.at]
        chains.append((chunk, max(heard, default=-1 if chunk.back else 0) + chunk.back))
    return max((length for chunk, length in chains if chunk.back), default=0)


async def _serve(target_port: int, delay: float, trace: Path, bytes_per_s: float) -> None:
    loop = asyncio.get_running_loop()
    log = trace.open("a", buffering=1)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool) -> None:
        free_at = 0.0
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                log.write(f"{json.dumps([time.monotonic(), back, len(data)])}\n")
                if bytes_per_s:  # the sender waits, as in front of a full line
                    free_at = max(free_at, loop.time()) + len(data) / bytes_per_s
                    await asyncio.sleep(free_at - loop.time())
                loop.call_later(delay, writer.write, data)
        loop.call_later(delay, writer.close)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", target_port)
        for side in (writer, target_writer):
            side.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(pump(reader, target_writer, False), pump(target_reader, writer, True))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)  # connections may be open


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])))
