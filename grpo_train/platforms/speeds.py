"""Figures of ``grpo-train bench`` by kind of machine, and how long the parts of a run take by them. Torch-free.

``grpo-train bench`` adds a row to ``bench.jsonl`` of the root, which the next machine finds on the disk that outlives
this one. :data:`MEASURED` has the figures that ship: only measured ones, with their date (docs/performance.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.platforms.memory import Shape
from grpo_train.run_dir.files import read_jsonl

FILE = "bench.jsonl"
"""In the root: a row for each call of ``grpo-train bench``, in the form of its ``--json``."""
BENCH_FACTOR, SCALED_FACTOR = 1.5, 2.0
"""How far measured times were from those of figures of the same model, and of another one: docs/performance.md."""
FARTHEST = 8.0
"""Ratio of the sizes of two models from which figures of one say nothing of the other."""
_TRAINED_COST = {"none": 6.0, "lora": 4.0}
"""FLOPs of a gradient per weight and token."""


@dataclass(frozen=True)
class Speed:
    """The speed of one model on one device, by one process."""

    device: str
    """As torch names it; ``CPU`` without a GPU."""
    threads: int
    """Of a CPU; 0 on a GPU."""
    model: str
    parameters: float
    adapter: str
    date: str
    decode: tuple[tuple[int, float], ...]
    """Completions at once, and seconds of a decoding step of all of them; ascending, at least one."""
    prompts: int
    completions: int
    """Of its whole step."""
    prompt_length: int
    length: int
    """Tokens of each completion of its step."""
    rollout: float
    """Seconds of the parts of its step."""
    gradient: float
    optimizer: float
    save: float = 0.0
    """Seconds that training waits for a save."""
    startup: float = 0.0
    """Seconds from the command to the first step."""
    note: str = ""
    """What else there is to know of it."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Speed:
        """From a row of the file. Raises KeyError, TypeError, ValueError, ArithmeticError for another version's."""
        figures = [figure for figure in row["figures"] if figure["name"] == "decode"]
        step, work = row["step"], row["work"]
        is_gpu = row["device"] != "CPU"
        decode = sorted((int(each["rows"]), each["seconds"] * each["rows"] / each["amount"]) for each in figures)
        found = cls(
            device=str(row["device"]), threads=0 if is_gpu else int(row["threads"]), model=str(row["model"]),
            parameters=float(work["parameters"]), adapter=str(row["adapter"]), date=str(row["time"])[:10],
            decode=tuple(decode), prompts=int(work["prompts"]), completions=int(work["completions"]),
            prompt_length=int(row["prompt_length"]), length=int(work["length"]),
            rollout=float(step["rollout"]), gradient=float(step["gradient"]), optimizer=float(step["optimizer"]),
            save=float(step["save_wait"]), startup=float(work["startup"]),
        )  # fmt: skip
        numbers = [found.rollout, found.gradient, found.parameters, found.length, found.completions]
        numbers += [seconds for _, seconds in decode]
        others = [found.prompts, found.prompt_length, found.optimizer, found.save, found.startup]
        if not decode or not all(map(math.isfinite, [*numbers, *others])) or min(numbers) <= 0 or min(others) < 0:
            raise ValueError("a figure is not above 0")
        return found

    @property
    def machine(self) -> str:
        return machine_name(self.device, self.threads)

    @property
    def name(self) -> str:
        """What was measured, and when."""
        trained = "LoRA" if self.adapter == "lora" else "all weights"
        when = ", ".join(filter(None, (self.date, self.note)))
        return f"bench of {self.machine}, {self.model} with {trained} ({when})"


MEASURED = (
    # docs/performance.md, "A step of 256 completions of 512 tokens generated for 2.5 s": of prompts of 128 tokens.
    # Neither its save nor its startup was measured.
    Speed(
        "NVIDIA H100 80GB HBM3", 0, "qwen2_5_15", 1.54e9, "lora", "2026-11-26", ((64, 2.8e-3), (256, 3.7e-3)),
        prompts=32, completions=256, prompt_length=128, length=512, rollout=2.5, gradient=4.6, optimizer=0.01,
        note="ships with grpo-train, one measurement",
    ),
)  # fmt: skip
"""What ships with the engine."""


def machine_name(device: str, threads: int) -> str:
    """A kind of machine in words."""
    return device if device != "CPU" else f"CPU with {threads} {'thread' if threads == 1 else 'threads'}"


def read_speeds(root: Path) -> list[Speed]:
    """The figures that are known, the newest of the root first, then those that ship."""
    found = []
    for _, row in read_jsonl(root / FILE):
        try:
            found.append(Speed.of(row))
        except (KeyError, TypeError, ValueError, ArithmeticError):  # of another version
            continue
    return [*reversed(found), *MEASURED]


def is_kind(device: str, asked: str) -> bool:
    """Whether a device, as ``NVIDIA H100 80GB HBM3``, is of a kind, as ``H100`` or ``gpu_1x_h100_sxm5``."""
    one, other = _models(device), _models(asked)
    return bool(one & other) if one and other else device.casefold() == asked.casefold()


def _models(name: str) -> set[str]:
    """The words of a name that say a GPU's model: ``H100``, ``A6000``, ``4090``."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    return {word for word in words if re.fullmatch(r"[A-Z]{0,2}\d{2,4}S?", word)}


def find_speed(
    speeds: Iterable[Speed], machine: str, threads: int, parameters: float | None, config: Config
) -> Speed | None:
    """The figures nearest to a config's model on a kind of machine: by its size, then by what is trained."""
    if parameters is None:
        return None
    here = [each for each in speeds if is_kind(each.device, machine) and each.threads in (0, threads)]
    near = [each for each in here if 1 / FARTHEST < each.parameters / parameters < FARTHEST]
    return min(near, key=lambda each: (_distance(each, parameters), each.adapter != config.model.adapter), default=None)


def _distance(speed: Speed, parameters: float) -> float:
    return round(abs(math.log(speed.parameters / parameters)), 1)


@dataclass(frozen=True)
class AssumedLengths:
    """Tokens that are assumed of each prompt and completion."""

    prompt: float
    mean: float
    longest: float
    trained: float = 1.0
    """Share of the completions that have a gradient."""


class Work:
    """Seconds of the parts of a run of ``config`` by the figures of ``speed``."""

    def __init__(self, speed: Speed, config: Config, parameters: float) -> None:
        self.speed, self.config = speed, config
        self._size = parameters / speed.parameters
        self._trained = _TRAINED_COST[config.model.adapter] / _TRAINED_COST[speed.adapter]
        self.is_same = abs(self._size - 1) < 0.05 and self._trained == 1

    @property
    def factor(self) -> float:
        return BENCH_FACTOR if self.is_same and not self.speed.note and self.config.run.nproc == 1 else SCALED_FACTOR

    def step(self, lengths: AssumedLengths) -> float:
        """A training step; a rollout serves several of them where the config says so."""
        rollout, algorithm = self.config.rollout, self.config.algorithm
        completions = rollout.buffer_size * rollout.num_generations
        tokens = lengths.trained * (rollout.buffer_size * lengths.prompt + completions * lengths.mean)
        gradient = tokens * self._seconds_per_token() * (4 / 3 if self.config.train.gradient_checkpointing else 1)
        scored = (self.config.steps_per_buffer > 1) + (algorithm.beta > 0)  # forward alone: a third
        buffer = self.rollout(completions / self.config.run.nproc, lengths, rollout.generation_batch_size)
        buffer += scored * tokens / max(lengths.trained, 1e-9) * self._seconds_per_token() / 3 / self.config.run.nproc
        update = gradient / algorithm.updates_per_buffer / self.config.run.nproc + self.speed.optimizer * self._size
        return buffer / self.config.steps_per_buffer + update

    def rollout(self, completions: float, lengths: AssumedLengths, at_once: int) -> float:
        """Generating completions: as many steps as the longest has tokens, by fewer rows once the others have ended."""
        rows = min(completions, at_once or completions)
        # Half of the steps decode all rows, the others as many as the mean leaves.
        left = max(1.0, rows * min(1.0, lengths.mean / lengths.longest))
        seconds = lengths.longest * (self._decode(rows) + self._decode(left)) / 2
        return math.ceil(completions / rows) * seconds * self._calibration * self._size

    def _decode(self, rows: float) -> float:
        return _between(self.speed.decode, rows)

    @property
    def _calibration(self) -> float:
        """What a whole rollout of the bench took longer than its decoding steps: prompts, weights, first steps."""
        speed = self.speed
        return speed.rollout / (speed.length * self._decode(speed.completions))

    def _seconds_per_token(self) -> float:
        speed = self.speed
        tokens = speed.prompts * speed.prompt_length + speed.completions * speed.length
        return speed.gradient / tokens * self._size * self._trained


def _between(points: Sequence[tuple[int, float]], x: float) -> float:
    """The value at ``x`` on the lines between points, and beyond the last one on the line of the last two."""
    if x <= points[0][0] or len(points) == 1:
        return points[0][1]
    (x0, y0), (x1, y1) = next((pair for pair in pairwise(points) if x <= pair[1][0]), (points[-2], points[-1]))
    return y0 + max(0.0, y1 - y0) * (x - x0) / (x1 - x0)


def shape_parameters(shape: Shape) -> float:
    """Weights that a token is multiplied by: what a step's time grows with."""
    return float(shape.layers * shape.layer_parameters + shape.vocabulary * shape.hidden)
