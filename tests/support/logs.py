"""A reader of one log over a raw agent, what an agent has open, and random histories of the file that it follows."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from remote.client import Follow
from remote.protocol import Cursor
from tests.support.agent import RawAgent
from tests.support.patience import PATIENCE

_ids = itertools.count(1)
NEW_FIELDS = ("tail_sha256", "device", "inode")
"""Fields of a cursor that version 0.1.0 does not have."""


class LogReader:
    """Follows a log as the client does, through any number of connections."""

    def __init__(self, agent: RawAgent, path: str, tail_bytes: int | None = None, older: bool = False) -> None:
        self.agent = agent
        self.content = b""
        """Bytes since the last rotation."""
        self.finished: list[bytes] = []
        """Contents that rotations ended."""
        self.rotations = 0
        self.error: dict[str, Any] = {}
        self.heard = False
        """Whether this connection has brought anything: until then, the agent may not have opened the log for it."""
        self._older = older
        self._follow = Follow(next(_ids), path, None, tail_bytes)
        self._connected = False
        self._awaited = 0
        """Rotations that a test has waited for."""
        self._frames = 0
        """Frames of the agent that this reader has seen."""
        self.connect()

    @property
    def cursor(self) -> Cursor:
        assert self._follow.cursor
        return self._follow.cursor

    def connect(self) -> None:
        """Subscribe from the cursor, as on a new connection."""
        old = self._follow
        self._follow = Follow(next(_ids), old.path, old.cursor, old.tail_bytes)
        self._frames = len(self.agent.frames)
        frame = self._follow.subscribe_frame()
        if self._older and (cursor := frame["params"]["cursor"]):
            frame["params"]["cursor"] = {key: value for key, value in cursor.items() if key not in NEW_FIELDS}
        self.agent.send(frame)
        self._connected, self.heard = True, False

    def disconnect(self) -> None:
        """End the subscription; what is on the way is lost."""
        self.agent.send({"type": "unsubscribe", "id": self._follow.subscription}, {"type": "ping", "n": -next(_ids)})
        self._connected = False

    def read_for(self, seconds: float) -> None:
        """Read all that arrives within a time."""
        self.agent.let_pass(seconds)
        self._look()

    def until(self, content: bytes, timeout: float = 10.0) -> None:
        """Read until the content since the last rotation is this one, and no more."""
        self._until(lambda: self.content == content, timeout)

    def until_rotated(self, timeout: float = 10.0) -> None:
        """Read until one rotation more than at the last call."""
        self._until(lambda: self.rotations > self._awaited, timeout)
        self._awaited += 1

    def until_finished(self, content: bytes) -> None:
        """Read until a rotation ended this content."""
        self._until(lambda: content in self.finished, 10.0)

    def until_closed(self) -> dict[str, Any]:
        """Read until the box refuses the log; returns the error."""
        self._until(lambda: bool(self.error), 10.0)
        return self.error

    def _until(self, condition: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + PATIENCE * timeout
        self._read(0)
        while not condition():
            length, rotations = len(self.content), self.rotations
            assert time.monotonic() < deadline, f"{length} bytes, {rotations} rotations: …{self.content[-80:]!r}"
            self._read(0.05)

    def _read(self, timeout: float) -> None:
        self.agent.read(timeout)
        self._look()

    def _look(self) -> None:
        for frame in self.agent.frames[self._frames :]:
            if frame.get("id") == self._follow.subscription and self._connected:
                self._take(frame)
        self._frames = len(self.agent.frames)

    def _take(self, frame: dict[str, Any]) -> None:
        self.heard = True
        if frame["type"] == "data":
            event = self._follow.data(frame)  # raises for a gap and for doubled bytes
            self.content += event.data
            if granted := self._follow.consumed(len(event.data)):
                self.agent.send({"type": "credit", "id": self._follow.subscription, "bytes": granted})
        elif frame["type"] == "rotated":
            self._follow.rotated()
            self.finished.append(self.content)
            self.content = b""
            self.rotations += 1
        elif frame["type"] == "closed":
            self.error = frame["error"]


def root_of(agent: RawAgent) -> Path:
    return Path(agent.hello["host"]["root"])


def pid_of(agent: RawAgent) -> int:
    return int(agent.hello["host"]["pid"])


def reader_of(agent: RawAgent, log: Path, **options: Any) -> LogReader:
    return LogReader(agent, log.relative_to(root_of(agent)).as_posix(), **options)


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def settle(reader: LogReader) -> None:
    """Give the agent time for anything more than what is expected."""
    reader.read_for(4.0)


def later(log: Path, before: os.stat_result) -> None:
    """Let a file that was just written have been written a clock tick after it was examined."""
    after = max(log.stat().st_mtime_ns, before.st_mtime_ns + 10_000_000)
    os.utime(log, ns=(after, after))


def run_histories(agent: RawAgent, root: Path, seed: str, examples: int, steps: int) -> None:
    """Run random histories of a log against an agent. Raises AssertionError with the shortest one that fails."""
    print(f"LINK_SEED={seed}")
    factory = hypothesis.seed(seed)(partial(LogHistory, agent, root))
    run_state_machine_as_test(
        factory,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def no_rest(chance: random.Random) -> None:
    """Write on at once."""


def run_storm(
    agent: RawAgent, root: Path, seed: str, actions: int, rest: Callable[[random.Random], None] = no_rest
) -> None:
    """Write and rotate a log while an agent follows it, with a rest after each action, then compare.

    Asserts that no content mixes two generations of the file, lacks a line or has one twice.
    """
    print(f"LINK_SEED={seed}")
    number = next(_ids)
    log = root / f"storm_{number}" / "log"
    log.parent.mkdir()
    log.write_bytes(STORM_HEAD)
    reader = LogReader(agent, log.relative_to(root).as_posix())
    writer = threading.Thread(target=_storm, args=(log, random.Random(seed), actions, rest))
    writer.start()
    while writer.is_alive():
        reader.read_for(0.02)
    writer.join()
    reader.until(log.read_bytes(), 30)
    contents = [*reader.finished, reader.content]
    print(f"{len(contents)} contents, {sum(map(len, contents)):,} bytes")
    for content in contents:
        assert content.startswith(STORM_HEAD) or STORM_HEAD.startswith(content)
        lines = content[len(STORM_HEAD) :].split(b"\n")[:-1]
        generations = {line.split()[0] for line in lines}
        assert len(generations) <= 1, generations
        assert [int(line.split()[1]) for line in lines] == list(range(len(lines)))
    reader.disconnect()


STORM_HEAD = b"the same first line of every file\n" * 150


def _storm(log: Path, chance: random.Random, actions: int, rest: Callable[[random.Random], None]) -> None:
    generation, lines = 0, 0
    stream = log.open("ab", buffering=0)
    for _ in range(actions):
        action = chance.random()
        if action < 0.05:
            generation, lines = generation + 1, 0
            if action < 0.02:  # truncated and grown again, in place
                stream.truncate(0)
            else:
                stream.close()
                if action < 0.03:
                    log.rename(log.with_name("away"))
                elif action < 0.04:
                    log.unlink()
                else:
                    log.with_name("new").touch()
                    os.replace(log.with_name("new"), log)
                stream = log.open("ab", buffering=0)
            stream.write(STORM_HEAD)
        count = chance.choice([1, 10, 1_000])
        stream.write(b"".join(b"%d %d %s\n" % (generation, lines + i, b"." * (i % 70)) for i in range(count)))
        lines += count
        rest(chance)
    stream.close()


class LogHistory(RuleBasedStateMachine):
    """A file under appends, rotations of all kinds, restores and reconnects.

    At any time the reader comes to hold exactly the file's bytes after the last rotation. What is renamed while a
    subscription stands is read to its end first.
    """

    def __init__(self, agent: RawAgent, root: Path) -> None:
        super().__init__()
        number = next(_ids)
        self.folder = root / f"history_{number}"
        self.folder.mkdir()
        self.log = self.folder / "log"
        self.log.touch()
        self.reader = LogReader(agent, f"history_{number}/log")
        self.connected = True
        self.lines = itertools.count(1)
        self.names = itertools.count(1)
        self.head = b"head of every file\n"
        self.at_path = True

    def text(self, size: int) -> bytes:
        """Lines that no file had before, so that no two contents agree by chance."""
        text = b""
        while len(text) < size:
            text += b"%d of the lines %s\n" % (next(self.lines), b"." * 40)
        return text

    @initialize(head=st.sampled_from([0, 20, 4_096, 10_000]))
    def begin(self, head: int) -> None:
        self.head = self.text(head) if head else b""
        self.log.write_bytes(self.head)

    @rule(size=st.sampled_from([1, 100, 5_000, 100_000]))
    def append(self, size: int) -> None:
        if self.at_path:
            with self.log.open("ab") as file:
                file.write(self.text(size))

    @rule()
    @precondition(lambda self: self.connected and self.at_path)
    def catch_up(self) -> None:
        self.reader.until(self.log.read_bytes(), 20)

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.1]))
    def pass_time(self, seconds: float) -> None:
        self.reader.read_for(seconds)

    @rule(kept=st.floats(0, 1), regrown=st.sampled_from([0, 100, 6_000, 150_000]), same_head=st.booleans())
    @precondition(lambda self: self.at_path)
    def truncate(self, kept: float, regrown: int, same_head: bool) -> None:
        """Truncated in place to some length, or to its head, and grown again at once."""
        before = self.log.stat()
        size = len(self.head) if same_head else int(kept * before.st_size)
        with self.log.open("r+b", buffering=0) as file:
            file.truncate(size)
            file.seek(0, os.SEEK_END)
            file.write(self.text(regrown) if regrown else b"")
        later(self.log, before)

    @rule(size=st.sampled_from([0, 100, 6_000, 150_000]), pause=st.booleans(), unlink=st.booleans())
    @precondition(lambda self: self.at_path)
    def rotate(self, size: int, pause: bool, unlink: bool) -> None:
        """Renamed, with a last line after that, or deleted; a successor with the same head."""
        known = self.connected and bool(self.reader.content)
        if known:
            if not self.reader.heard:
                self.append(1)
            self.reader.until(self.log.read_bytes(), 20)
            # The end of an empty file is not reported, and what appeared since the last poll was never opened.
            known = bool(self.reader.content) and self.reader.agent.has_open(self.log)
        with self.log.open("ab", buffering=0) as writer:
            self.log.unlink() if unlink else self.log.rename(self.folder / f"log.{next(self.names)}")
            if pause:
                self.pass_time(0.1)
            if not unlink:
                writer.write(self.text(100))
            whole = Path(f"/proc/self/fd/{writer.fileno()}").read_bytes()
        if pause:
            self.pass_time(0.1)
        self.log.write_bytes(self.head + self.text(size))
        if known:
            self.reader.until_finished(whole)

    @rule(more=st.sampled_from([0, 100, 50_000]))
    @precondition(lambda self: self.at_path)
    def restore(self, more: int) -> None:
        """Another inode with the same bytes, and perhaps more."""
        content = self.log.read_bytes()
        copy = self.folder / "copy"
        copy.write_bytes(content + (self.text(more) if more else b""))
        os.replace(copy, self.log)

    @rule()
    def reconnect(self) -> None:
        if self.connected:
            self.reader.disconnect()
        else:
            self.reader.connect()
        self.connected = not self.connected

    def teardown(self) -> None:
        if not self.connected:
            self.reader.connect()
        self.reader.until(self.log.read_bytes(), 20)
        with self.log.open("ab") as file:
            file.write(b"the last line\n")
        self.reader.until(self.log.read_bytes(), 20)
        self.reader.disconnect()
