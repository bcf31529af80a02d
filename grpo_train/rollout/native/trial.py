"""A trial of a frozen copy: prompts and decoding steps, compared with transformers' own attention."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_train.rollout.native.decoding import read_prompts
from grpo_train.rollout.native.flash import spans_of
from grpo_train.rollout.native.slots import LengthRange, Shared, Slots, mask_of, step_of
from grpo_train.rollout.native.weights import FrozenCopy, UnsupportedModelError, named_unsupported

PROMPTS = (tuple(range(3, 12)), tuple(range(5, 10)))
OF_ROW = [0, 0, 1]
"""The prompt of each row."""
STEPS = 3
LENGTH = 64
"""Positions of a slot."""
TOLERANCE = {2: 0.1, 4: 1e-3, 8: 1e-9}
"""Norm of the difference of logits from the reference's, relative to them, by bytes of the compute type: in
bfloat16, each of some 60 sums of a deep model rounds by up to 2^-8."""


class CopyTrials:
    """Trials of one copy, whose reference is computed once."""

    def __init__(self, copy: FrozenCopy) -> None:
        self._copy = copy
        self._expected: Tensor | None = None

    def run(self, *, is_shared: bool, is_flash: bool = False) -> int:
        """Compare; returns the bytes of keys and values of one position.

        Args:
            is_shared: whether the rows share the keys and values of their prompts.
            is_flash: whether attention is computed by FlashAttention.

        Raises UnsupportedModelError with the reason.
        """
        slots = Slots(len(OF_ROW), LENGTH, *((len(PROMPTS), LENGTH) if is_shared else (0, 0)), is_flash=is_flash)
        with named_unsupported(), torch.inference_mode(), torch.autocast(self._copy.device.type, enabled=False):
            found = self._decode(slots)
            if self._expected is None:
                self._expected = self._reference()[OF_ROW]
        allowed = TOLERANCE[self._copy.model.dtype.itemsize] * self._expected.norm()
        if not slots.layers or not (found - self._expected).norm() <= allowed:
            raise UnsupportedModelError("its logits differ from those of transformers' own attention")
        keys, values, *_ = next(iter(slots.layers.values()))
        return sum(x[0].numel() * x.element_size() for x in (keys, values)) // LENGTH * len(slots.layers)

    def _decode(self, slots: Slots) -> Tensor:
        """Logits (rows, tokens, V) after the prompts and after each step."""
        device, dtype = self._copy.device, self._copy.model.dtype
        lengths = [len(PROMPTS[number]) for number in OF_ROW]
        length_B, slot_B = torch.tensor(lengths, device=device), torch.arange(len(OF_ROW), device=device)
        if slots.entries:
            length_E = torch.tensor([len(prompt) for prompt in PROMPTS], device=device)
            ranges, spans = (
                [LengthRange(0, len(PROMPTS), LENGTH, 2)],
                spans_of(slot_B[: len(PROMPTS)], length_E, LENGTH, 2),
            )
            shared: Shared | None = Shared(slot_B, ranges, mask_of(length_E, LENGTH, dtype), spans=spans)
            first_B = torch.zeros_like(length_B)
            found = [read_prompts(self._copy, slots, dict(enumerate(PROMPTS)), device)[OF_ROW]]
        else:
            shared, first_B = None, length_B
            found = [read_prompts(self._copy, slots, {k: PROMPTS[n] for k, n in enumerate(OF_ROW)}, device)]
        for step in range(STEPS):
            ranges = [LengthRange(0, len(OF_ROW), LENGTH)]
            flash_length = LENGTH * slots.is_flash
            work = step_of(
                slot_B, first_B + step, ranges, dtype, is_dense=True, shared=shared, flash_length=flash_length
            )
            position_B1 = (length_B + step).unsqueeze(1)
            found.append(self._copy.logits(slots, work, torch.full_like(position_B1, 3 + step), position_B1, 1)[:, -1])
        return torch.stack(found, 1).double()

    def _reference(self) -> Tensor:
        """Logits (prompts, tokens, V) after each prompt and each of the steps' tokens."""
        then = range(3, 3 + STEPS)
        with self._copy.own_attention() as model:
            rows = [torch.tensor([[*prompt, *then]], device=self._copy.device) for prompt in PROMPTS]
            found = [model(input_ids=row, use_cache=False).logits[0, -STEPS - 1 :] for row in rows]
        return torch.stack(found).double()
