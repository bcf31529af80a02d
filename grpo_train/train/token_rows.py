"""Tokens of some completions for ``tokens.jsonl``: which are kept, and their values in the last pass that uses them.

They are what the update computes: no pass is added, and no value waits for the device before the step's end.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from grpo_train.config.schema import Config
from grpo_train.policy.tokenizer import TokenTexts
from grpo_train.rollout.collect import Sample
from grpo_train.run_dir import tokens as codes
from grpo_train.train.buffer import RolloutBuffer

GROUPS = 2
"""Groups of an update that are kept by default …"""
SHARE = 4
"""… where their lines take at most a quarter of the bytes of the buffer's rows in ``rollouts.jsonl``."""
ROW = 256
"""Bytes of such a row besides its texts, at least."""
HEAD, ENTRY = 120, 24
"""Bytes of a line besides its completions, and of a completion besides its tokens, at most."""
BYTES = 16 / 3
"""Bytes of a token: four in base64."""
LINE = 1 << 19
"""Bytes of a line, about; a longer group has several."""


def choose_slots(samples: Sequence[Sample], rewards: torch.Tensor, config: Config) -> list[int]:
    """Slots whose tokens are kept, those of each update by spread of the group's rewards, as the app lists groups.

    A function of the buffer, so that a resume keeps the same ones.
    """
    generations, updates = config.rollout.num_generations, config.algorithm.updates_per_buffer
    wanted = config.tracking.token_rows
    groups: dict[int, list[tuple[Sample, float]]] = {}
    for sample, reward in zip(samples, rewards.tolist(), strict=True):
        groups.setdefault(sample.group, []).append((sample, reward))

    def spread(group: int) -> float:
        return statistics.pstdev([reward for _, reward in groups[group] if reward == reward] or [0.0])

    part = config.rollout.buffer_size // updates
    logged = sum(ROW + len(one.problem.prompt.encode()) + len(one.text.encode()) for one in samples)
    found: list[int] = []
    for update in range(updates):
        order = [group for group in range(update * part, (update + 1) * part) if group in groups]
        order.sort(key=lambda group: (-spread(group), group))
        slots: list[int] = []
        left = logged / SHARE / updates if wanted is None else math.inf
        for group in order if wanted is not None else order[:GROUPS]:
            left -= HEAD
            for sample, _ in groups[group]:
                left -= ENTRY + BYTES * sample.length + len(sample.text) // 8  # long texts take two bytes more
                if left >= 0:
                    slots.append(group * generations + sample.slot)
        found += slots[:wanted]
    return found


class TokenRow(NamedTuple):
    """A completion of ``tokens.jsonl``."""

    group: int
    sample: int
    text: str
    """:func:`grpo_train.run_dir.tokens.encode_tokens`."""


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
        text = codes.encode_tokens(
            lengths,
            _codes(sampled),
            _codes(entropies),
            _ratio_codes(logps - sampled),
            np.nan_to_num(fates).astype(int).tolist(),
        )
        rows.append(TokenRow(group, sample, text))
    return rows


def token_lines(step: int, of: int, rows: Iterable[TokenRow]) -> Iterator[dict[str, Any]]:
    """Lines of ``tokens.jsonl``.

    ``step``: that of the values; ``of``: that of the completions' rows in ``rollouts.jsonl``.
    """
    for group, members in groupby(sorted(rows), key=lambda row: row.group):
        found: dict[str, str] = {}
        for row in members:
            if sum(map(len, found.values())) > LINE:
                yield {"step": step, "of": of, "group": group, "tokens": found}
                found = {}
            found[str(row.sample)] = row.text
        yield {"step": step, "of": of, "group": group, "tokens": found}


def _codes(values: np.ndarray) -> bytes:
    """A code for each log-probability or entropy."""
    return _bytes(np.log1p(codes.FINE * np.abs(values).clip(max=codes.LARGEST)) / codes.STEP)


def _ratio_codes(logs: np.ndarray) -> bytes:
    """A code for each log of a ratio."""
    sizes = np.log1p(codes.RATIO_FINE * np.abs(logs).clip(max=codes.RATIO_LARGEST)) / codes.RATIO_STEP
    return _bytes(127 + np.copysign(sizes.round(), logs))


def _bytes(values: np.ndarray) -> bytes:
    found: bytes = np.nan_to_num(values.round(), nan=codes.UNKNOWN).astype(np.uint8).tobytes()
    return found
