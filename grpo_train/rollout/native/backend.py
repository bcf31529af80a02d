"""``rollout.backend: native``: completions from a frozen copy of the weights, each with a slot for keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_train.policy.completion import Completion
from grpo_train.policy.locate import PolicyError
from grpo_train.policy.memory import free_bytes, is_out_of_memory
from grpo_train.rollout.draw import Draw, Ends
from grpo_train.rollout.halving import Halving
from grpo_train.rollout.native.decoding import Decoding, OnToken, read_prompts
from grpo_train.rollout.native.graphs import Record, StepGraphs, cuda_recorder
from grpo_train.rollout.native.slots import ATTENTION, Range, Slots, step_of
from grpo_train.rollout.native.weights import FrozenCopy, UnsupportedModelError

LOOK_EVERY = {"cuda": 8, "cpu": 1}
"""Tokens between two looks of the host, by device type; on a GPU a look waits for all pending kernels."""
LENGTH_STEP = 64
"""Granularity of the length of slots."""
LOGIT_BYTES = 4 * 4
"""Per vocabulary entry of one row: logits in float32, scaled, as log-probabilities, as probabilities."""
TRIAL_TOKENS = 32
"""Tokens of each completion of the trial of CUDA graphs."""
TOLERANCE = {2: 0.1, 4: 1e-3, 8: 1e-9}
"""Norm of the difference of logits from the reference's, relative to them, by bytes of the compute type: in
bfloat16, each of some 60 sums of a deep model rounds by up to 2^-8."""


class NativeBackend:
    """:class:`~grpo_train.rollout.RolloutBackend` for models with full attention, with or without a LoRA adapter.

    The weights are those of the last :meth:`sync`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        stop: Sequence[str] = (),
        *,
        dtype: torch.dtype | None = None,
        memory_share: float = 0.8,
        look_every: int = 0,
        cuda_graphs: bool = True,
    ) -> None:
        """Copy ``model``'s weights, and compare the copy's logits with transformers' own attention.

        Args:
            stop: strings that end a completion; the completion includes the string.
            dtype: compute type; None = that of the model's embedding.
            memory_share: share of the free memory that slots may take.
            look_every: tokens between two looks; 0 = by device type. Changes no completion.
            cuda_graphs: whether decoding steps on a GPU are recorded as CUDA graphs, if a trial confirms it.

        Raises UnsupportedModelError for a model that this backend cannot run.
        """
        self._copy = FrozenCopy(model, dtype)
        self._model = self._copy.model
        self._device = self._copy.device
        self._ends = Ends(self._model, tokenizer, stop)
        self._memory_share = memory_share
        self._halving = Halving()
        self._look_every = look_every or LOOK_EVERY[self._device.type]
        self._position_bytes = self._try()
        self._recorder: Callable[[], Record] | None = None
        """Makes what records decoding steps; None = they are launched kernel by kernel."""
        if cuda_graphs and self._device.type == "cuda":
            self._record_with(cuda_recorder)

    def sync(self) -> None:
        """See :meth:`grpo_train.rollout.RolloutBackend.sync`."""
        self._copy.sync()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        batch_size: int = 0,
        on_done: Callable[[int, Completion], None] | None = None,
        on_token: Callable[[int, int, int], None] | None = None,
    ) -> list[Completion]:
        """See :meth:`grpo_train.rollout.RolloutBackend.generate`.

        Raises PolicyError if the keys and values of one completion do not fit into memory, and for NaN.
        """
        if not prompts:
            return []
        length = max(map(len, prompts)) + max_completion_length + self._look_every
        length = -(-length // LENGTH_STEP) * LENGTH_STEP
        draw, fitting = Draw(temperature, top_p, top_k), self._fitting(length)
        completions: dict[int, Completion] = {}

        def flow(indices: list[int], size: int) -> Iterator[tuple[int, Completion]]:
            return self._flow(prompts, seeds, indices, size, length, max_completion_length, draw, on_token)

        with torch.inference_mode(), torch.autocast(self._device.type, enabled=False):
            for index, completion in self._halving.run(len(prompts), min(batch_size or fitting, fitting), flow):
                completions[index] = completion
                if on_done is not None:  # here, so that its own out-of-memory error is not retried
                    on_done(index, completion)
        return [completions[index] for index in range(len(prompts))]

    def _flow(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        indices: Sequence[int],
        size: int,
        length: int,
        budget: int,
        draw: Draw,
        on_token: OnToken | None,
    ) -> Iterator[tuple[int, Completion]]:
        """The completions ``indices``, in ``size`` slots of ``length`` positions, each when it ends."""
        graphs = None if self._recorder is None else StepGraphs(self._recorder())
        decoding = Decoding(
            self._copy, Slots(size + (graphs is not None), length), draw, self._ends, self._device,
            budget=budget, every=self._look_every, graphs=graphs,
        )  # fmt: skip
        chosen = {index: tuple(prompts[index]) for index in indices}
        yield from decoding.run(chosen, {index: seeds[index] for index in indices}, on_token)
        if graphs is not None and graphs.failure:
            self._without_graphs(graphs.failure)

    def _record_with(self, recorder: Callable[[], Record]) -> None:
        """Record decoding steps from now on, if recorded ones generate the same tokens as others of their shape."""
        prompts = [tuple(range(3, 3 + length)) for length in (9, 5, 7, 3, 8)]  # and three rows that fill up
        found = []
        for record in (recorder(), None):
            graphs = StepGraphs(record)
            ends = Ends(None, None, ())
            decoding = Decoding(
                self._copy, Slots(9, LENGTH_STEP), Draw(0), ends, self._device,
                budget=TRIAL_TOKENS, every=self._look_every, graphs=graphs,
            )  # fmt: skip
            with torch.inference_mode(), torch.autocast(self._device.type, enabled=False):
                found.append(dict(decoding.run(dict(enumerate(prompts)), {})))
            if graphs.failure:
                return self._without_graphs(graphs.failure)
        if found[0] != found[1]:
            return self._without_graphs("they generate other tokens")
        self._recorder = recorder
        return None

    def _without_graphs(self, reason: str) -> None:
        self._recorder = None
        print(f"rollouts without CUDA graphs, which are slower: {reason}", flush=True)

    def _fitting(self, length: int) -> int:
        """Slots of ``length`` that fit into memory."""
        vocabulary = int(self._model.config.get_text_config().vocab_size)
        each = self._position_bytes * length + vocabulary * LOGIT_BYTES
        available = free_bytes(self._device) * self._memory_share
        if available < each:
            raise PolicyError(
                f"the keys and values of one completion take {each / 2**30:.1f} GiB, and rollout.memory_share "
                f"{self._memory_share:g} leaves {available / 2**30:.1f} GiB; lower rollout.max_completion_length"
            )
        return int(available // each)

    def _try(self) -> int:
        """Compare two prompts and some decoding steps with transformers' own attention; returns the bytes of keys and
        values of one position."""
        prompts, steps = [tuple(range(3, 12)), tuple(range(5, 10))], 3
        try:
            with torch.inference_mode(), torch.autocast(self._device.type, enabled=False):
                slots = Slots(len(prompts), LENGTH_STEP)
                row_slots = {0: prompts[0], 1: prompts[1]}
                found = [read_prompts(self._copy, slots, row_slots, self._device)]
                for step in range(steps):
                    at_B = torch.tensor([len(prompt) + step for prompt in prompts], device=self._device)
                    slot_B = torch.arange(len(prompts), device=self._device)
                    work = step_of(slot_B, at_B, [Range(0, 2, LENGTH_STEP)], self._model.dtype, is_dense=True)
                    ids_B1 = torch.full((2, 1), 3 + step, device=self._device)
                    found.append(self._copy.logits(slots, work, ids_B1, at_B.unsqueeze(1), 1)[:, -1])
                expected = self._reference(prompts, [3 + step for step in range(steps)])
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError) as error:
            if is_out_of_memory(error):
                raise
            raise UnsupportedModelError(str(error).strip().splitlines()[0] if str(error) else repr(error)) from error
        difference = torch.stack(found, 1).double() - expected
        if not slots.layers or not difference.norm() <= TOLERANCE[self._model.dtype.itemsize] * expected.norm():
            raise UnsupportedModelError("its logits differ from those of transformers' own attention")
        return sum(x.numel() * x.element_size() for pair in slots.layers.values() for x in pair) // (2 * LENGTH_STEP)

    def _reference(self, prompts: Sequence[tuple[int, ...]], then: list[int]) -> Tensor:
        """Logits (U, tokens, V) after each prompt and after each of the tokens ``then``."""
        self._model.set_attn_implementation("sdpa")
        try:
            found = []
            for prompt in prompts:
                ids = torch.tensor([[*prompt, *then]], device=self._device)
                found.append(self._model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :])
        finally:
            self._model.set_attn_implementation(ATTENTION)
        return torch.stack(found).double()
