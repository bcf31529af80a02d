"""The faults of a link that stands."""

from __future__ import annotations

import math
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from grpo_train.run_dir.processes import signal_quietly
from tests.support.opening import mask
from tests.support.truth import Trouble

if TYPE_CHECKING:
    from tests.soak.standing import Standing

SHORT_S = 3.0
"""A shorter outage loses nothing, and the link must survive it …"""
NAP_S = 9.0
"""… and a shorter sleep."""
STEPS_S = (2, 40, 700, 5 * 3600, 40 * 86_400)


class Faults:
    """One method per fault; ``pace`` scales how long it lasts."""

    def __init__(self, lane: Standing, chance: random.Random, pace: float) -> None:
        self.lane, self.chance, self.pace = lane, chance, pace

    def strike(self, kind: str) -> Trouble:
        """Let a fault happen, to its end."""
        trouble = Trouble(kind, time.monotonic())
        try:
            getattr(self, kind)(trouble)
        finally:
            trouble.ended, trouble.offset_s = time.monotonic(), self.lane.offset_s
            self.lane.proxy.resume()
        return trouble

    def _last(self, shortest: float, longest: float) -> float:
        """Stay for a random time; returns it."""
        seconds = self.pace * math.exp(self.chance.uniform(math.log(shortest), math.log(longest)))
        self.lane.pass_time(seconds)
        return seconds

    def reset(self, trouble: Trouble) -> None:
        self.lane.proxy.reset()

    def reset_of_the_laptops_end(self, trouble: Trouble) -> None:
        self.lane.proxy.reset_end(back=False)

    def reset_of_the_boxs_end(self, trouble: Trouble) -> None:
        self.lane.proxy.reset_end(back=True)

    def hole(self, trouble: Trouble) -> None:
        self.lane.proxy.black_hole()
        trouble.silent = True
        trouble.harmless = self._last(1, 60) < SHORT_S * self.pace

    def hole_with_loss(self, trouble: Trouble) -> None:
        self.lane.proxy.black_hole()
        trouble.silent = True
        self._last(1, 60)
        trouble.ended = time.monotonic()
        self.lane.proxy.pass_through()

    def dead_towards_the_box(self, trouble: Trouble) -> None:
        self.lane.proxy.dead(back=False)
        self._last(1, 60)

    def dead_towards_the_laptop(self, trouble: Trouble) -> None:
        self.lane.proxy.dead(back=True)
        trouble.silent = True
        self._last(1, 60)

    def slow(self, trouble: Trouble) -> None:
        self.lane.proxy.slow(1_000)
        self._last(3, 40)

    def delayed(self, trouble: Trouble) -> None:
        self.lane.proxy.delay(0.3)
        self._last(2, 20)
        trouble.harmless = True

    def agent_killed(self, trouble: Trouble) -> None:
        if agent := self.lane.agent:
            signal_quietly(agent, signal.SIGKILL)

    def refused(self, trouble: Trouble) -> None:
        trouble.refuses = True
        self.lane.proxy.close_port()
        self._last(1, 20)

    def reset_at_once(self, trouble: Trouble) -> None:
        """Connections are accepted and reset."""
        self.lane.proxy.refuse()
        self._last(1, 20)

    def flipped_towards_the_box(self, trouble: Trouble) -> None:
        self._flip(back=False)

    def flipped_towards_the_laptop(self, trouble: Trouble) -> None:
        self._flip(back=True)

    def _flip(self, back: bool) -> None:
        proxy, fired = self.lane.proxy, len(self.lane.proxy.fired)
        proxy.flip(back=back, mask=mask(self.chance))
        with suppress(AssertionError):  # the link may be down
            self.lane.until(lambda: len(proxy.fired) > fired, 5, "the byte passes")

    def suspended(self, trouble: Trouble) -> None:
        trouble.harmless = self._suspend() < NAP_S * self.pace

    def suspended_in_a_hole(self, trouble: Trouble) -> None:
        """As a machine sleeps: nothing answers the box."""
        self.lane.proxy.black_hole()
        self._suspend()

    def _suspend(self) -> float:
        laptop = psutil.Process(self.lane.laptop.pid)
        pids = [laptop.pid, *(child.pid for child in laptop.children(recursive=True))]
        for pid in pids:
            signal_quietly(pid, signal.SIGSTOP)
        try:
            return self._last(1, 60)
        finally:
            for pid in pids:
                signal_quietly(pid, signal.SIGCONT)

    def clock(self, trouble: Trouble) -> None:
        """The laptop's clock is set."""
        self.lane.set_clock(self.lane.offset_s + self.chance.choice((1, -1)) * self.chance.choice(STEPS_S))
        self._last(1, 4)
        trouble.harmless = True


KINDS = [name for name in vars(Faults) if not name.startswith("_") and name != "strike"]
