"""A live run that writes logs, as a process: ``python -m tests.support.log_loads LOAD ROOT SEED``.

It is the writer of run ``live`` until its input ends; it stops writing at the first line of its input, and then prints
``stopped``. Run ``done`` has finished. What a laptop has received is compared with what was written.
"""

from __future__ import annotations

import filecmp
import functools
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from grpo_train.run_dir import RunDir, StatusWriter, create_run
from grpo_train.run_dir.files import utc_now

RUN = "live"
STATES = {"live": "running", "done": "finished"}
"""True of the runs at any time."""
MANY = 200
TAIL_BYTES = 65_536
TICK_S = 0.02
STATUS_EVERY_S = 5.0
LOADS = ("fast", "many", "trickle", "rotating")


def line(number: int) -> bytes:
    """A line of 100 bytes of a train_log.jsonl."""
    row = {"step": number, "loss": round(number * 1e-6, 6), "reward": 0.5}
    return json.dumps({**row, "note": ""}).encode()[:-2].ljust(97, b".") + b'"}\n'


class Load:
    """One kind of load: its writer, the logs to follow, and what must have arrived."""

    def __init__(self, name: str, root: Path, rate: float = 0) -> None:
        self.name = name
        self.root = root
        self.logs = root / "training_runs" / RUN / "logs"
        self.generations = root.parent / "generations"
        """A copy of each file of the rotated log."""
        self.rate = rate or {"fast": 500, "many": 100, "trickle": 2, "rotating": 200}[name]
        """Lines/s."""

    @property
    def files(self) -> list[Path]:
        if self.name == "many":
            return [self.logs / f"part_{number:03d}.jsonl" for number in range(MANY)]
        return [self.logs / ("train_log.jsonl" if self.name == "fast" else "console.log")]

    def follows(self) -> list[tuple[str, int | None]]:
        """Paths and ``tail_bytes`` of the logs to follow."""
        tail_bytes = TAIL_BYTES if self.name == "rotating" else None
        return [(file.relative_to(self.root).as_posix(), tail_bytes) for file in self.files]

    # ------------------------------------------------------------------------------------------- the writer

    def write(self, chance: random.Random, stopped: Callable[[], bool]) -> None:
        """Write lines until told to stop."""
        begin, count = time.monotonic(), 0
        write = self._rotating(chance) if self.name == "rotating" else self._appending(chance)
        while not stopped():
            due = int((time.monotonic() - begin) * self.rate) - count
            if due > 0:
                next(write)(due)
                count += due
            time.sleep(TICK_S)

    def _appending(self, chance: random.Random) -> Iterator[Callable[[int], None]]:
        streams = [file.open("ab", buffering=0) for file in self.files]
        lines = map(line, itertools.count())
        while True:
            yield lambda due: chance.choice(streams).write(b"".join(itertools.islice(lines, due)))  # type: ignore[func-returns-value]

    def _rotating(self, chance: random.Random) -> Iterator[Callable[[int], None]]:
        """Rotate every few seconds: renamed, deleted, or truncated in place."""
        log = self.files[0]
        self.generations.mkdir()
        stream = log.open("ab", buffering=0)
        for number in itertools.count():
            until = time.monotonic() + chance.uniform(1, 8)
            with (self.generations / str(number)).open("ab", buffering=0) as copy:
                append = functools.partial(_append, stream, copy, number, itertools.count())
                while time.monotonic() < until:
                    yield append
            way = chance.choice(("rename", "delete", "truncate"))
            if way == "truncate":
                stream.truncate(0)
            else:
                log.rename(log.with_name("console.log.1")) if way == "rename" else log.unlink()
                stream.close()
                stream = log.open("ab", buffering=0)

    # ------------------------------------------------------------------------------------------ what arrived

    def written(self) -> Any:
        """What has been written so far, for :meth:`has_arrived`."""
        if self.name == "rotating":
            number = len(list(self.generations.iterdir())) - 1
            return number, (self.generations / str(number)).stat().st_size
        return [_size(file) for file in self.files]

    def has_arrived(self, written: Any, folder: Path) -> bool:
        """Whether a laptop has it."""
        if self.name != "rotating":
            return all(_size(folder / f"{n}.0") >= size for n, size in enumerate(written))
        contents = _contents(folder)
        if not contents:
            return False
        number, offset = self._origin(contents[-1])
        return number > written[0] or (number == written[0] and offset + _size(contents[-1]) >= written[1])

    def assert_equal(self, folder: Path) -> int:
        """Every byte arrived once, in order. Returns their number."""
        if self.name == "rotating":
            return self._assert_generations(folder)
        for number, file in enumerate(self.files):
            copy = folder / f"{number}.0"
            assert copy.exists() or not _size(file), f"nothing of {file} arrived"
            assert not _size(file) or filecmp.cmp(file, copy, shallow=False), f"{copy} differs from {file}"
            assert not (folder / f"{number}.1").exists(), f"a rotation of {file} was reported"
        return sum(map(_size, self.files))

    def _assert_generations(self, folder: Path) -> int:
        """Each content is the beginning of a later file than the one before, and the last one is whole.

        What a file gets in an outage, and its successor then replaces, does not arrive. The first content is a tail.
        """
        contents, previous, total = _contents(folder), -1, 0
        for content in contents:
            number, offset = self._origin(content)
            data, whole = content.read_bytes(), (self.generations / str(number)).read_bytes()
            assert number > previous, f"{content}: file {number} after file {previous}"
            assert offset == 0 or content == contents[0], f"{content} begins at byte {offset}"
            assert whole[offset : offset + len(data)] == data, f"{content} differs from file {number}"
            previous, total = number, total + len(data)
        assert whole[offset:] == data, "the last file is not whole"
        assert previous == len(list(self.generations.iterdir())) - 1
        return total

    def _origin(self, content: Path) -> tuple[int, int]:
        """The file and the offset where a content begins."""
        with content.open("rb") as stream:
            first = stream.readline()
        if not first.endswith(b"\n"):
            return -1, 0
        number = int(first.split()[0])
        return number, (self.generations / str(number)).read_bytes().index(first)


def _append(stream: IO[bytes], copy: IO[bytes], number: int, lines: Iterator[int], due: int) -> None:
    """Write lines of one file; the copy is never behind."""
    text = b"".join(b"%d %d %s\n" % (number, next(lines), b"." * 60) for _ in range(due))
    copy.write(text)
    stream.write(text)


def _contents(folder: Path) -> list[Path]:
    return sorted(folder.glob("0.*"), key=lambda file: int(file.suffix[1:]))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _make_run(root: Path, name: str, state: str) -> tuple[RunDir, StatusWriter]:
    run = create_run(root, {"config_text": "load"}, name)
    status = StatusWriter(run.path)
    status.update(state=state, total_steps=10**9, started_at=utc_now())
    return run, status


def main() -> None:
    load, seed = Load(sys.argv[1], Path(sys.argv[2]), float(sys.argv[4])), sys.argv[3]
    _make_run(load.root, "done", STATES["done"])[1].close()
    _, status = _make_run(load.root, RUN, STATES["live"])
    stop = threading.Event()

    def heartbeat() -> None:
        while True:
            time.sleep(STATUS_EVERY_S)
            status.update()

    threading.Thread(target=heartbeat, daemon=True).start()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    print("started", flush=True)
    load.write(random.Random(seed), stop.is_set)
    print("stopped", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
