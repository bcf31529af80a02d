"""Mixtures: several tasks in one run, each with its own keys of the ``task`` section. Torch-free.

Which part the prompt at a position comes from is a pure function of the weights and the position
(:class:`MixtureOrder`); which of its problems, of the seed and the number of its prompts so far
(:func:`~grpo_train.tasks.shared.order.data_order`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import gcd

from grpo_train.config import schema
from grpo_train.rewards.types import Attempt, Problem, Split, Task, TaskError, Verdict
from grpo_train.tasks.shared.adversarial import AdversarialTask
from grpo_train.tasks.shared.base import TaskDefaults
from grpo_train.tasks.shared.self_play import SelfPlayTask

RESOLUTION = 1000
"""Weights are rounded to this share of the largest one."""


class MixtureOrder:
    """Part of each position, periodic: every prefix holds each part's share of it to less than one prompt.

    Scheduling by earliest deadline of a proportionate share (Baruah et al. 1996, "Proportionate progress"): the prompt
    k of a part with share w is due at position ceil((k + 1) / w) and not drawn before floor(k / w).
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """``weights``: positive, one per part."""
        whole = [max(1, round(weight * RESOLUTION / max(weights))) for weight in weights]
        divisor = reduce(gcd, whole)
        self._counts = [weight // divisor for weight in whole]
        """Prompts of each part in a period."""
        self._period = sum(self._counts)
        drawn = [0] * len(weights)
        self._parts: list[tuple[int, int]] = []
        """(part, number of its earlier prompts) of every position of a period."""
        for position in range(self._period):
            part = min(
                (k for k, count in enumerate(self._counts) if drawn[k] * self._period // count <= position),
                key=lambda k: (-(-(drawn[k] + 1) * self._period // self._counts[k]), k),
            )
            self._parts.append((part, drawn[part]))
            drawn[part] += 1

    def at(self, position: int) -> tuple[int, int]:
        """The part of a position ≥ 0, and the number of that part's prompts before it."""
        periods, rest = divmod(position, self._period)
        part, earlier = self._parts[rest]
        return part, periods * self._counts[part] + earlier


@dataclass(frozen=True)
class Mixture(TaskDefaults):
    """Several tasks. A problem's ``task`` names its part, which judges it."""

    parts: dict[str, Task] = field(default_factory=dict)
    """By label; a curriculum replaces one by the same task at another level."""
    weights: Mapping[str, float] = field(default_factory=dict)

    def size(self, split: Split) -> int:
        """Number of problems of all parts."""
        return sum(part.size(split) for part in self.parts.values())

    def problem(self, split: Split, index: int) -> Problem:
        """Problems of the parts one after the other. Its ``index`` is that in the part."""
        for label, part in self.parts.items():
            if index < (size := part.size(split)):
                return replace(part.problem(split, index), task=label)
            index -= size
        raise IndexError(index)

    def judge(self, attempt: Attempt) -> Verdict:
        return self.parts[attempt.problem.task].judge(attempt)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the data of each part."""
        parts = ((label, part) for label, part in self.parts.items() if isinstance(part, TaskDefaults))
        return tuple(f"{label}: {note}" for label, part in parts for note in part.notes)


def make_mixture(config: schema.TaskConfig, parts: Sequence[Task]) -> Mixture:
    """The mixture of ``config``, whose ``parts`` are loaded. Raises TaskError for tasks that do not mix."""
    for index, part in enumerate(parts):
        if isinstance(part, SelfPlayTask | AdversarialTask):
            kind = "a self-play game" if isinstance(part, SelfPlayTask) else "a game against another model"
            raise TaskError(
                f"task[{index}].name: {part.name} is {kind}, which does not mix with other tasks (its groups are not "
                "completions of one prompt); train it in a run of its own"
            )
        if part.stop != parts[0].stop:
            raise TaskError(
                f"task[{index}].name: completions of {part.name} end at {', '.join(part.stop) or 'no text'}, those of "
                f"{parts[0].name} at {', '.join(parts[0].stop) or 'no text'}; tasks of a mixture must share it"
            )
    labels = [part.part_label for part in config.parts or [config]]
    return Mixture(
        name=config.name,
        label=config.name,
        stop=parts[0].stop,
        slow=any(part.slow for part in parts),
        config=config,
        parts=dict(zip(labels, parts, strict=True)),
        weights={part.part_label: part.weight for part in config.parts or [config]},
    )
