"""Tokens of some completions for ``tokens.jsonl``: which are kept, and their values in the last pass that uses them.

They are what the update computes: no pass is added, and no value waits for the device before the step's end.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from grpo_train.config.schema import Config
from grpo_train.policy.tokenizer import TokenTexts
from grpo_train.run_dir import tokens as codes
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.samples import ScoredSample

GROUPS = 2
"""Groups of an update that are kept by default."""
LINE = 1 << 19
"""Bytes of one line, about; a longer group has several."""
HEAD, ENTRY = 120, 16
"""Bytes of a line besides its completions at most, and of a completion besides its text."""


def choose(samples: Sequence[ScoredSample], rewards: torch.Tensor, config: Config) -> list[int]:
    """Slots whose tokens are kept, those of each update by spread of the group's rewards, as the app lists groups."""
    generations, updates = config.rollout.num_generations, config.algorithm.updates_per_buffer
    wanted = config.tracking.token_rows
    count = GROUPS * generations if wanted is None else wanted
    of_group: dict[int, list[tuple[int, float]]] = {}
    for sample, reward in zip(samples, rewards.tolist(), strict=True):
        of_group.setdefault(sample.group, []).append((sample.slot, reward))

    def spread(group: int) -> float:
        return statistics.pstdev([reward for _, reward in of_group[group] if reward == reward] or [0.0])

    part = config.rollout.buffer_size // updates
    found: list[int] = []
    for update in range(updates):
        groups = [group for group in range(update * part, (update + 1) * part) if group in of_group]
        groups.sort(key=lambda group: (-spread(group), group))
        slots = [group * generations + slot for group in groups for slot, _ in of_group[group]]
        found += slots[:count]
    return found


class TokenRow(NamedTuple):
    """A completion of ``tokens.jsonl``."""

    group: int
    sample: int
    text: str
    """:func:`grpo_train.run_dir.tokens.encode`."""


def token_rows(
    buffer: RolloutBuffer,
    kept: Mapping[int, tuple[int, int]],
    passes: Mapping[int, torch.Tensor],
    texts: TokenTexts,
) -> list[TokenRow]:
    """Rows of this rank's completions ``kept`` (:meth:`RolloutBuffer.kept_rows`).

    ``passes`` are the values of :class:`~grpo_train.train.token_metrics.TokenSums`, (3, T) each; a completion without
    gradient has none.
    """
    rows = []
    for row, (group, sample) in kept.items():
        completion = buffer.completions[row]
        lengths = texts.lengths(completion.ids)
        if not lengths:
            continue
        count = len(lengths)
        sampled = np.array(completion.logps or [np.nan] * count)
        logps, entropies, fates = np.full((3, count), np.nan)
        if row in passes:
            logps, entropies, fates = passes[row][:, :count].numpy()
        text = codes.encode(
            lengths, _codes(sampled), _codes(entropies), _ratio_codes(logps - sampled), np.nan_to_num(fates).astype(int).tolist()
        )
        rows.append(TokenRow(group, sample, text))
    return rows


def lines(step: int, of: int, rows: Sequence[TokenRow], room: int | None) -> Iterator[dict[str, Any]]:
    """Lines of ``tokens.jsonl``, in at most ``room`` bytes, with as many of the rows as fit; None = all.

    ``step``: that of the values; ``of``: that of the completions' rows in ``rollouts.jsonl``.
    """
    left = float("inf") if room is None else room
    groups: dict[int, list[TokenRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    for group, members in groups.items():
        left -= HEAD
        found: dict[str, str] = {}
        size = 0
        for row in sorted(members):
            if size > LINE:
                yield {"step": step, "of": of, "group": group, "tokens": found}
                found, size, left = {}, 0, left - HEAD
            length = len(row.text) + ENTRY
            if length > left:
                break
            found[str(row.sample)] = row.text
            size, left = size + length, left - length
        if found:
            yield {"step": step, "of": of, "group": group, "tokens": found}


def _codes(values: np.ndarray) -> bytes:
    """A code for each log-probability or entropy."""
    return _bytes(np.log1p(codes.FINE * np.abs(values).clip(max=codes.LARGEST)) / codes.STEP)


def _ratio_codes(logs: np.ndarray) -> bytes:
    """A code for each log of a ratio."""
    sizes = np.log1p(codes.RATIO_FINE * np.abs(logs).clip(max=codes.RATIO_LARGEST)) / codes.RATIO_STEP
    return _bytes(127 + np.copysign(sizes.round(), logs))


def _bytes(values: np.ndarray) -> bytes:
    return np.nan_to_num(values.round(), nan=codes.UNKNOWN).astype(np.uint8).tobytes()
