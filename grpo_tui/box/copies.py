"""Copies between this machine and a box: what was requested, and how far it is. No Textual."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.run_dir.errors import UserError
from grpo_tui.box.formatting import byte_size, percent, short_duration

if TYPE_CHECKING:
    from remote.boxes import Box
    from remote.code import Synced
    from remote.copying import Copied, Copier
    from remote.events import HostKeyAsked, QuestionAsked

RATE_S = 5.0
"""The rate is that of the last seconds."""


@dataclass(frozen=True)
class Get:
    """Copy a run, or the weights of one of its checkpoints, to this machine. See :meth:`remote.copying.Copier.get`."""

    what: str
    """``RUN``, or ``RUN:STEP`` for weights."""
    folder: Path
    steps: str = "latest"

    def title(self) -> str:
        """Such as ``weights of run_a, step 40``."""
        run, _, step = self.what.partition(":")
        return f"weights of {run}, step {step}" if step else run

    def between(self, box: str) -> str:
        return f"from {box} to {self.folder}"


@dataclass(frozen=True)
class Put:
    """Copy a file or directory to the box. See :meth:`remote.copying.Copier.put`."""

    source: Path
    to: str

    def title(self) -> str:
        return self.source.name

    def between(self, box: str) -> str:
        return f"from {self.source.parent} to {self.to} on {box}"


@dataclass(frozen=True)
class Sync:
    """Bring the code of this machine to the box. See :func:`remote.code.sync`."""

    source: Path | None
    """The checkout; None where the box pulls."""
    with_changes: bool = False

    def title(self) -> str:
        return "code"

    def between(self, box: str) -> str:
        return f"from {self.source} to {box}" if self.source else f"git pull on {box}"


class CopyProgress:
    """Bytes, rate and time left. The thread of the copy calls :meth:`take`, any other one reads."""

    def __init__(self, is_get: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._mark, self._clock = "↓" if is_get else "↑", clock
        self.done = self.total = 0
        """Bytes that are there, and of all."""
        self._samples: deque[tuple[float, int]] = deque()

    def take(self, done: int, total: int) -> None:
        """Bytes arrived. After a reconnection they are counted from 0 again."""
        now = self._clock()
        if done < self.done:
            self._samples.clear()
        self.done, self.total = done, total
        if not self._samples or now - self._samples[-1][0] >= RATE_S / 50:
            self._samples.append((now, done))
        while now - self._samples[0][0] > RATE_S:
            self._samples.popleft()

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.done / self.total if self.total else 0.0

    @property
    def rate(self) -> float:
        """Bytes per second; 0 = not known."""
        try:
            began, done = self._samples[0]
        except IndexError:
            return 0.0
        seconds = self._clock() - began
        return max(0, self.done - done) / seconds if seconds > 0 else 0.0

    def _pace(self) -> list[str]:
        left = short_duration((self.total - self.done) / self.rate) if self.rate else ""
        return [f"{byte_size(self.rate)}/s", left] if left else []

    def label(self) -> str:
        """``↓ 42% 12 MB/s 3m``."""
        return " ".join([f"{self._mark} {percent(self.share, '')}" if self.total else f"{self._mark} …", *self._pace()])

    def line(self) -> str:
        """``4.2 GB of 10 GB · 12 MB/s · 8m left``."""
        if not self.total:
            return "connecting …"
        pace = self._pace()
        return " · ".join(
            [f"{byte_size(self.done)} of {byte_size(self.total)}", *pace[:1], *(f"{left} left" for left in pace[1:])]
        )


class BoxCopy:
    """One copy. Its thread writes what the app reads."""

    def __init__(self, box: Box, request: Get | Put | Sync) -> None:
        self.box, self.request = box, request
        self.progress = CopyProgress(isinstance(request, Get))
        self.note = ""
        """Why it connects again."""
        self.copied: Copied | None = None
        self.synced: Synced | None = None
        """What a sync did; ``copied`` has its bytes."""
        self.problem = ""
        self.over = False
        self._copier: Copier | None = None
        self.stopped = threading.Event()

    def run(
        self, accept: Callable[[HostKeyAsked], bool], answer: Callable[[QuestionAsked], str | None], readonly: bool
    ) -> None:
        """Copy; ``accept`` and ``answer`` are called on this thread. Returns once it is done, failed or stopped."""
        from remote.code import sync
        from remote.copying import Copied, Copier

        request = self.request
        try:
            with Copier(
                self.box, ask_host_key=accept, ask=answer, progress=self._take, say=self._say, readonly=readonly
            ) as self._copier:
                if self.stopped.is_set():
                    return
                if isinstance(request, Get):
                    self.copied = self._copier.get(request.what, request.folder, request.steps)
                elif isinstance(request, Sync):
                    self.synced = sync(self._copier, with_changes=request.with_changes, start=request.source)
                    self.copied = Copied(
                        [self.synced.path], 1, self.synced.size, self.synced.size, self.synced.left_out
                    )
                else:
                    self.copied = self._copier.put(request.source, request.to)
        except UserError as error:
            self.problem = str(error)
        except Exception as error:  # a message instead of a traceback
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.over = True

    def stop(self) -> None:
        """Stop it. What has arrived is kept. Any thread."""
        if self.over:
            return
        self.stopped.set()
        if self._copier is not None:
            self._copier.stop()

    @property
    def was_stopped(self) -> bool:
        return self.stopped.is_set() and self.copied is None

    def _take(self, done: int, total: int) -> None:
        self.note = ""
        self.progress.take(done, total)

    def _say(self, text: str) -> None:
        self.note = text
