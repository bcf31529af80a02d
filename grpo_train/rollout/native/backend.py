"""``rollout.backend: native``: completions from a frozen copy of the weights, each with a slot for keys and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from grpo_train.policy.completion import Completion
from grpo_train.policy.locate import PolicyError
from grpo_train.policy.memory import KEEPERS, free_bytes
from grpo_train.rollout.draw import SMALL_VOCABULARY, BlockSums, Draw, Ends, block_sums
from grpo_train.rollout.halving import Halving
from grpo_train.rollout.native.decoding import Decoding, OnToken
from grpo_train.rollout.native.flash import lacks
from grpo_train.rollout.native.graphs import Record, StepGraphs, cuda_recorder
from grpo_train.rollout.native.slots import ATTENTION_APART, ATTENTION_INSIDE, Slots
from grpo_train.rollout.native.trial import CopyTrials
from grpo_train.rollout.native.weights import FrozenCopy, UnsupportedModelError

LOOK_EVERY = {"cuda": 8, "cpu": 1}
"""Tokens between two looks of the host, by device type; on a GPU a look waits for all pending kernels."""
LENGTH_STEP = 64
"""Granularity of the length of slots."""
SHARE_FROM = {"cpu": 16, "cuda": 512}
"""Average length of prompts from which completions share their keys and values, by device type: to join two parts of
attention takes ten more kernels a layer, to read a position once instead of for each completion saves its bytes. That
of CUDA is computed, not measured."""
LOGIT_BYTES = 4 * 4
"""Per vocabulary entry of one row: logits in float32, scaled, as log-probabilities, as probabilities."""
TRIAL_TOKENS = 32
"""Tokens of each completion of the trial of CUDA graphs."""
GRAPHS = "graphs"
"""Name of the trial of CUDA graphs."""
KEPT = "kept"
"""Name of the attempt to keep slots and graphs between two calls."""
COMPILER = "inductor"
"""Backend of torch.compile."""


class NativeBackend:
    """:class:`~grpo_train.rollout.RolloutBackend` for models with full attention, with or without a LoRA adapter.

    The weights are those of the last :meth:`sync`. Where decoding steps are recorded, slots and recorded steps stay for
    the next call, which takes them if they are large enough (:class:`~grpo_train.policy.memory.Keeper`).
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
        compile_layers: bool = False,
        failed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Copy ``model``'s weights, and compare the copy's logits with transformers' own attention.

        Args:
            stop: strings that end a completion; the completion includes the string.
            dtype: compute type; None = that of the model's embedding.
            memory_share: share of the free memory that slots may take.
            look_every: tokens between two looks; 0 = by device type. Changes no completion.
            cuda_graphs: whether decoding steps on a GPU are recorded as CUDA graphs, if a trial confirms it.
            compile_layers: whether the layers of decoding steps are compiled, if a trial confirms it.
            failed: trials that are not tried again, as an earlier backend's ``fallbacks``.

        Raises UnsupportedModelError for a model that this backend cannot run.
        """
        device = next(model.parameters()).device
        self._copy = FrozenCopy(model, dtype, is_fused=device.type == "cuda")
        self._model = self._copy.model
        self._device = self._copy.device
        self._ends = Ends(self._model, tokenizer, stop)
        self._memory_share = memory_share
        self._halving = Halving()
        self._look_every = look_every or LOOK_EVERY[self._device.type]
        self.fallbacks: dict[str, str] = {}
        self._failed = failed
        trial = CopyTrials(self._copy)
        self._position_bytes = trial.run(is_shared=False)
        shared = partial(trial.run, is_shared=True)
        self._can_share = self._tried("sharing", shared, "rollouts keep a copy of the prompt for each completion")
        self._is_flash = False
        if self._device.type == "cuda" and self._model.dtype.itemsize == 2:
            self._is_flash = self._try_flash(trial)
        self._sums: BlockSums | None = None
        """Compiled; None = as they are."""
        if compile_layers:
            self._compile(trial)
        self._recorder: Callable[[], Record] | None = None
        """Makes what records decoding steps; None = they are launched kernel by kernel."""
        self._kept: _Kept | None = None
        """None while it is used, too: an error drops it."""
        self._keeps = KEPT not in failed
        if not self._keeps:
            self._fall_back(KEPT, failed[KEPT])
        KEEPERS.add(self)
        if cuda_graphs and self._device.type == "cuda":
            self._record_with(partial(cuda_recorder, torch.cuda.Stream()))

    def sync(self) -> None:
        """See :meth:`grpo_train.rollout.RolloutBackend.sync`."""
        self._copy.sync()

    def kept_bytes(self, device: torch.device) -> int:
        """See :class:`~grpo_train.policy.memory.Keeper`."""
        return self._kept.decoding.bytes if self._kept and device.type == self._device.type else 0

    def release(self, *, for_good: bool) -> bool:
        """See :class:`~grpo_train.policy.memory.Keeper`."""
        if self._kept is None:
            return False
        self._kept, self._keeps = None, not for_good
        if for_good:
            self._fall_back(
                KEPT, "rollouts make slots and CUDA graphs anew in each call, which is slower: memory ran out"
            )
        return True

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
        room = self._room(prompts, max_completion_length)
        draw, fitting = Draw(temperature, top_p, top_k, self._sums), self._fitting(room)
        completions: dict[int, Completion] = {}

        def flow(indices: list[int], size: int) -> Iterator[tuple[int, Completion]]:
            return self._flow(prompts, seeds, indices, size, room, draw, on_token)

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
        room: _Room,
        draw: Draw,
        on_token: OnToken | None,
    ) -> Iterator[tuple[int, Completion]]:
        """The completions ``indices``, in ``size`` slots, each when it ends."""
        need = replace(room, slots=size, entries=min(room.entries, size), most=min(room.most, size))
        used, self._kept = self._kept, None
        if used is None or used.decoding.draw != draw or not used.room.holds(need):
            room = need.joined(used.room) if used and used.room.is_shared == need.is_shared else need
            room, used = room if self._fits(room) else need, None  # gives its memory back
            graphs = None if self._recorder is None else StepGraphs(self._recorder())
            used = _Kept(self._decoding(room, draw, self._ends, graphs), room)
        chosen = {index: tuple(prompts[index]) for index in indices}
        yield from used.decoding.run(chosen, {index: seeds[index] for index in indices}, need.budget, size, on_token)
        graphs = used.decoding.graphs
        if graphs is not None and graphs.failure:
            self._without_graphs(graphs.failure)
        elif graphs is not None and self._keeps:
            self._kept = used

    def _decoding(self, room: _Room, draw: Draw, ends: Ends, graphs: StepGraphs | None) -> Decoding:
        spare = graphs is not None
        entries = room.entries + spare if room.entries else 0
        return Decoding(
            self._copy, Slots(room.slots + spare, room.length, entries, room.prompt_length, self._is_flash), draw, ends,
            self._device, budget=room.budget, every=self._look_every, most=room.most, graphs=graphs,
        )  # fmt: skip

    def _record_with(self, recorder: Callable[[], Record]) -> None:
        """Record decoding steps from now on, if recorded ones generate the same tokens as others of their shape."""
        if GRAPHS in self._failed:
            return self._fall_back(GRAPHS, self._failed[GRAPHS])
        prompts = dict(enumerate(tuple(range(3, 3 + length)) for length in (9, 5, 7, 9, 5)))  # and three that fill up
        for entries in (0, 3) if self._can_share else (0,):
            room = _Room(LENGTH_STEP, entries, LENGTH_STEP, most=2, budget=TRIAL_TOKENS, slots=8)
            found = []
            for record in (recorder(), None):
                graphs = StepGraphs(record)
                with torch.inference_mode(), torch.autocast(self._device.type, enabled=False):
                    decoding = self._decoding(room, Draw(0), Ends(None, None, ()), graphs)
                    found.append(dict(decoding.run(prompts, {}, TRIAL_TOKENS, room.slots)))
                if graphs.failure:
                    return self._without_graphs(graphs.failure)
            if found[0] != found[1]:
                return self._without_graphs("they generate other tokens")
        self._recorder = recorder
        return None

    def _without_graphs(self, reason: str) -> None:
        self._recorder = None
        self._fall_back(GRAPHS, f"rollouts without CUDA graphs, which are slower: {reason}")

    def _try_flash(self, trial: CopyTrials) -> bool:
        """Whether FlashAttention gives the same, with whatever prompts are shared."""

        def run() -> None:
            if reason := lacks():
                raise UnsupportedModelError(reason)
            for is_shared in (False, True) if self._can_share else (False,):
                trial.run(is_shared=is_shared, is_flash=True)

        return self._tried("flash", run, "rollouts without FlashAttention, which are slower")

    def _compile(self, trial: CopyTrials) -> None:
        compiled = partial(trial.run, is_shared=self._can_share, is_flash=self._is_flash)
        ways = [("layers", ATTENTION_APART, "rollouts without compiled layers, which are slower")]
        if self._is_flash:
            without = "rollouts with attention outside of compiled layers, which are slower"
            ways.insert(0, ("layers_with_attention", ATTENTION_INSIDE, without))
        for name, attention, without in ways:
            self._copy.compile(COMPILER, attention)
            if self._tried(name, compiled, without):
                self._compile_sums()
                return
            self._copy.leave_compiled()

    def _compile_sums(self) -> None:
        vocabulary = int(self._model.config.get_text_config().vocab_size)
        if vocabulary > SMALL_VOCABULARY:
            sums = torch.compile(block_sums, backend=COMPILER)
            run, without = partial(self._try_sums, sums, vocabulary), "rollouts with an uncompiled draw of tokens"
            if self._tried("draw", run, without):
                self._sums = sums

    def _try_sums(self, sums: BlockSums, vocabulary: int) -> None:
        """Raises UnsupportedModelError where ``sums`` differs from :func:`block_sums`."""
        for rows in (2, 3):  # the second number is compiled for any
            shape = (rows, vocabulary)
            logits = torch.sin(torch.arange(rows * vocabulary, device=self._device)).view(shape).to(self._model.dtype)
            try:
                found = sums(logits, 0.7)
            except RuntimeError as error:  # of the compiler: no C compiler, or an old GPU
                raise UnsupportedModelError((str(error) or repr(error)).strip().splitlines()[0]) from error
            pairs = zip(found, block_sums(logits, 0.7), strict=True)
            if not all(torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6) for a, b in pairs):
                raise UnsupportedModelError("its sums differ")

    def _room(self, prompts: Sequence[Sequence[int]], budget: int) -> _Room:
        users = Counter(tuple(prompt) for prompt in prompts)
        longest, own = max(map(len, users)), budget + self._look_every
        is_long = sum(map(len, users)) >= SHARE_FROM.get(self._device.type, SHARE_FROM["cuda"]) * len(users)
        if self._can_share and is_long and len(prompts) >= 2 * len(users):
            return _Room(_rounded(own), len(users), _rounded(longest), max(users.values()), budget)
        return _Room(_rounded(longest + own), 0, 0, 1, budget)

    def _sizes(self, room: _Room) -> tuple[int, int]:
        """Bytes of a slot with its logits, and of an entry with its."""
        vocabulary = int(self._model.config.get_text_config().vocab_size)
        each = self._position_bytes * room.length + vocabulary * LOGIT_BYTES
        return each, self._position_bytes * room.prompt_length + vocabulary * self._model.dtype.itemsize

    def _fits(self, room: _Room) -> bool:
        each, entry = self._sizes(room)
        return room.slots * each + room.entries * entry <= free_bytes(self._device) * self._memory_share

    def _fitting(self, room: _Room) -> int:
        """Slots that fit into memory."""
        each, entry = self._sizes(room)
        available = free_bytes(self._device) * self._memory_share
        if room.entries and (fitting := int((available - room.entries * entry) // each)) >= room.entries:
            return fitting
        if room.entries:
            each += entry
        if available < each:
            raise PolicyError(
                f"the keys and values of one completion take {each / 2**30:.1f} GiB, and rollout.memory_share "
                f"{self._memory_share:g} leaves {available / 2**30:.1f} GiB; lower rollout.max_completion_length"
            )
        return int(available // each)

    def _tried(self, name: str, action: Callable[[], object], without: str) -> bool:
        """Whether a trial succeeds; otherwise what follows is said once. One that failed before is not run."""
        message = self._failed.get(name)
        if message is None:
            try:
                action()
                return True
            except UnsupportedModelError as error:
                message = f"{without}: {error}"
        self._fall_back(name, message)
        return False

    def _fall_back(self, name: str, message: str) -> None:
        self.fallbacks[name] = message
        print(message, flush=True)


def _rounded(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP


@dataclass(frozen=True)
class _Room:
    """Slots of a call, and the entries of the prompts that its completions share."""

    length: int
    entries: int
    """Different prompts; 0 = each slot has its own copy."""
    prompt_length: int
    most: int
    """Completions that share a prompt."""
    budget: int
    """Tokens of a completion."""
    slots: int = 0

    @property
    def is_shared(self) -> bool:
        return self.entries > 0

    def holds(self, need: _Room) -> bool:
        """Whether a call that needs ``need`` may use this."""
        return self.is_shared == need.is_shared and self.joined(need) == self

    def joined(self, other: _Room) -> _Room:
        """As large as both."""
        return _Room(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True)
class _Kept:
    """What a later call may use."""

    decoding: Decoding
    room: _Room
