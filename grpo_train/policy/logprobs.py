"""Log-probabilities of given completions under the policy, and the entropies of their distributions.

Packed without padding and without whole logits where the model allows it, which is probed on the model itself.

Shape suffixes: B completions, P padded prompt length, T padded completion length, M completion tokens, H hidden size,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_train.policy.compiled import Blocks
from grpo_train.policy.completion import Completion
from grpo_train.policy.head import logps_and_entropy, logps_of_logits, logps_of_module, mixed_products
from grpo_train.policy.loading import Policy
from grpo_train.policy.memory import is_out_of_memory
from grpo_train.policy.packing import ATTENTION, PackedRow, RowMap, pack
from grpo_train.policy.transfer import ArrayTransfer


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability and entropy of each completion token; 0 outside the mask."""

    logps: Tensor
    """(B, T) float32 (float64 for a float64 model), temperature applied."""
    entropy: Tensor
    """(B, T), of the full distribution, temperature applied."""
    mask: Tensor
    """(B, T) int64, 1 on completion tokens."""
    computed: int = 0
    """Tokens that went through the layers, padding not counted; a prompt that completions share counts once."""
    predicted: int = 0
    """Tokens that went through the head."""


class LogprobForward:
    """Forward pass of the policy over given completions."""

    packed: bool
    """Whether completions are packed into one row without padding."""
    chunked: bool
    """Whether logits are computed a chunk of tokens at a time."""
    kernel: str
    """What computes attention."""
    blocks: Blocks | None
    """Compiled transformer blocks, for passes with a gradient; None = plain ones."""
    notes: list[str]
    """A sentence for each requested feature that this model does not support."""

    def __init__(
        self,
        policy: Policy,
        *,
        temperature: float,
        packing: bool = True,
        chunked: bool = True,
        share_prompts: bool = True,
        token_budget: int = 0,
        longest: int = 0,
    ) -> None:
        """Probe packing and the chunked head on the model, and fall back where they differ from the plain model.

        Args:
            temperature: sampling temperature; logits are divided by it.
            packing: False pads prompts on the left and completions on the right.
            chunked: False computes whole logits.
            share_prompts: compute a prompt shared by packed completions once. The numbers are the same up to the order
                in which gradients are summed.
            token_budget: maximum tokens per forward pass in :meth:`score`; 0 = no limit.
            longest: tokens of the longest prompt and completion, which attention kernels are tried on.
        """
        self.policy, self.temperature, self.token_budget = policy, temperature, token_budget
        self.notes, self.blocks = [], None
        self._base = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
        self._flash = "flash" in str(self._base.config._attn_implementation)
        self._share_prompts = share_prompts and not self._flash
        self.packed = self.chunked = self._plain_head = False
        self.kernel = str(self._base.config._attn_implementation)
        with eval_mode(policy.model), policy.autocast(), torch.no_grad():
            if chunked:
                self._probe_head()
            if packing:
                self._probe_packing(longest)

    def __call__(self, completions: Sequence[Completion], *, entropy_gradient: bool = False) -> TokenLogprobs:
        """Log-probabilities, with gradient where gradients are enabled; entropies only with ``entropy_gradient``.

        Raises ValueError for a completion of an empty prompt, RuntimeError where packing is not safe any more.
        """
        device = self.policy.device
        if any(completion.ids and not completion.prompt_ids for completion in completions):
            raise ValueError("a completion of an empty prompt has no log-probability: its first token has no context")
        count_B, width_T = len(completions), max((len(completion.ids) for completion in completions), default=0) or 1
        if not any(completion.ids for completion in completions):
            # independent of every parameter, but backward() still runs
            zeros = torch.zeros((count_B, width_T), device=device, requires_grad=torch.is_grad_enabled())
            mask = torch.zeros((count_B, width_T), dtype=torch.long, device=device)
            return TokenLogprobs(zeros, zeros.detach() if not entropy_gradient else zeros, mask)
        compiled = self.blocks if self.blocks and torch.is_grad_enabled() else nullcontext()
        with self.policy.autocast(), compiled:
            if self.packed:
                self._check_attention()
                batch: _Padded | PackedRow = pack(completions, device, width_T, self._share_prompts)
            else:
                batch = _Padded(completions, self._pad_id, device, width_T)
            logps_M, entropy_M = self._tokens(batch, entropy_gradient)
        flat = logps_M.new_zeros(count_B * width_T)
        mask = torch.zeros(len(flat), dtype=torch.long, device=device).index_fill_(0, batch.slots, 1)
        return TokenLogprobs(
            flat.index_copy(0, batch.slots, logps_M).view(count_B, width_T),
            flat.index_copy(0, batch.slots, entropy_M).view(count_B, width_T),
            mask.view(count_B, width_T),
            computed=batch.tokens if isinstance(batch, _Padded) else batch.input_ids.shape[1],
            predicted=len(batch.targets),
        )

    def _check_attention(self) -> None:
        """Raises RuntimeError where something has changed the model's attention since it was probed: another one would
        look beyond the sequences of a packed row, without an error."""
        attention = str(self._base.config._attn_implementation)
        if not self._flash and attention != ATTENTION:
            raise RuntimeError(
                f"the attention of {type(self._base).__name__} was changed from '{ATTENTION}' to '{attention}' (do two "
                "models share a config?): packed log-probabilities would be wrong"
            )

    @torch.no_grad()
    def score(self, completions: Sequence[Completion], batch_size: int = 0) -> list[Tensor]:
        """Log-probabilities without gradient or dropout: (T_i,) for each completion, on the CPU, in order.

        Args:
            batch_size: maximum completions per forward pass, within the token budget; 0 = all.
        """
        size = batch_size or max(1, len(completions))
        scores: list[Tensor] = []
        with eval_mode(self.policy.model):
            for start in range(0, len(completions), size):
                batch = completions[start : start + size]
                for rows in split_by_tokens(batch, self.token_budget):
                    logps_BT = self([batch[row] for row in rows]).logps.cpu()
                    scores += [logps_BT[i, : len(batch[row].ids)].clone() for i, row in enumerate(rows)]
        return scores

    def _tokens(self, batch: _Padded | PackedRow, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """Log-probabilities (M,) and entropies (M,) of a batch's completion tokens."""
        options: dict[str, Any] = {"temperature": self.temperature, "entropy_gradient": entropy_gradient}
        if not self.chunked:
            # The model picks the positions before its head.
            keep = batch.predictors.index if isinstance(batch, PackedRow) else batch.width_T
            logits = self._base(**self._inputs(batch), logits_to_keep=keep).logits.flatten(0, 1)
            if not isinstance(batch, PackedRow):
                logits = logits.index_select(0, batch.slots)
            return logps_of_logits(logits, batch.targets, **options)
        hidden_MH = batch.predictors.pick(self._hidden(batch))
        head = self._base.get_output_embeddings()
        if self._plain_head:
            dtype = self.policy.autocast_dtype
            return logps_and_entropy(hidden_MH, head.weight, head.bias, batch.targets, dtype=dtype, **options)
        return logps_of_module(head, hidden_MH, batch.targets, vocabulary=self.vocabulary, **options)

    def _hidden(self, batch: _Padded | PackedRow) -> Tensor:
        """The decoder's last hidden states, (rows · length, H)."""
        hidden: Tensor = self.decoder(**self._inputs(batch)).last_hidden_state
        return hidden.flatten(0, 1)

    def _inputs(self, batch: _Padded | PackedRow) -> dict[str, Any]:
        return batch.model_inputs(flash=self._flash) if isinstance(batch, PackedRow) else batch.model_inputs()

    @property
    def description(self) -> str:
        """How log-probabilities are computed, for the log."""
        rows = "packed" if self.packed else "padded"
        logits = "in chunks" if self.chunked else "whole"
        return f"log-probabilities: rows {rows}, attention by {self.kernel}, logits {logits}"

    @property
    def decoder(self) -> Any:
        """The model without its head."""
        return self._base.get_decoder()

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self._base.config.get_text_config().vocab_size)

    @property
    def _pad_id(self) -> int:
        return int(getattr(self.policy.tokenizer, "pad_token_id", None) or 0)

    # ---------------------------------------------------------------------------- probes, before the model's first use

    def _probe_completions(self) -> list[Completion]:
        """Three short completions of different lengths, two of one prompt, with fixed tokens."""
        ids = [(37 * i * i + 11 * i + 3) % self.vocabulary for i in range(32)]
        prompts = (tuple(ids[:5]), tuple(ids[:5]), tuple(ids[5:8]))
        completions = (ids[8:12], ids[12:21], ids[21:24])
        return [Completion(p, tuple(c), (), True) for p, c in zip(prompts, completions, strict=True)]

    def _probe_head(self) -> None:
        """Use the chunked head where the head module receives exactly the decoder's output and returns exactly the
        logits. Adapters, quantized weights, soft caps and scales each break one of these."""
        head, decoder = self._base.get_output_embeddings(), self.decoder
        seen: dict[str, Tensor] = {}
        hooks = []
        if head is not None and decoder is not self._base:
            hooks = [
                head.register_forward_hook(lambda _, args, output: seen.update(given=args[0], returned=output)),
                decoder.register_forward_hook(lambda _, args, output: seen.update(hidden=output[0])),
            ]
        completion = self._probe_completions()[1]
        try:
            batch = _Padded([completion], self._pad_id, self.policy.device, len(completion.ids))
            logits = self._base(**batch.model_inputs()).logits
        finally:
            for hook in hooks:
                hook.remove()
        if set(seen) != {"given", "returned", "hidden"}:
            self.notes.append(_whole_logits(self._base, "its head is not a separate module"))
        elif not torch.equal(seen["given"], seen["hidden"]):
            self.notes.append(_whole_logits(self._base, "it changes the hidden states before the head"))
        elif not torch.equal(seen["returned"].to(logits.dtype), logits):
            self.notes.append(_whole_logits(self._base, "it caps or scales the head's output"))
        else:
            self.chunked = True
            if type(head) is torch.nn.Linear:
                dtype = self.policy.autocast_dtype or seen["given"].dtype
                given, weight = seen["given"].to(dtype), head.weight.to(dtype)
                expected = torch.nn.functional.linear(given, weight, None if head.bias is None else head.bias.to(dtype))
                self._plain_head = is_near(expected, seen["returned"], tolerance(dtype))
                if self._plain_head and dtype.itemsize == 2 and not mixed_products(self.policy.device, dtype):
                    name = f"{self.policy.device_name} does not multiply {str(dtype).removeprefix('torch.')} matrices"
                    self.notes.append(f"{name} into float32 ones: logits are computed by float32 products, slower")
            if not self._plain_head:
                self.notes.append(
                    f"the head of {type(self._base).__name__} is a {type(head).__name__}, not a plain linear layer: "
                    "log-probabilities are computed through it in chunks, slightly slower"
                )

    def _probe_packing(self, longest: int) -> None:
        """Use packing where a packed row gives the same hidden states as each completion by itself."""
        attention = str(self._base.config._attn_implementation)
        if attention not in ("sdpa", ATTENTION) and not self._flash:
            self._not_packed(f"the model's attention is '{attention}'; packing needs 'sdpa'")
            return
        kinds = set(getattr(self._base.config.get_text_config(), "layer_types", None) or ["full_attention"])
        if unknown := sorted(kinds - {"full_attention", "sliding_attention"}):
            self._not_packed(f"the model has {', '.join(unknown)} layers")
            return
        completions, device = self._probe_completions(), self.policy.device
        singles = [_Padded([completion], self._pad_id, device, len(completion.ids)) for completion in completions]
        expected = torch.cat([single.predictors.pick(self._hidden(single)) for single in singles])
        row = pack(completions, device, max(len(completion.ids) for completion in completions), self._share_prompts)
        if attention == "sdpa":
            self._base.set_attn_implementation(ATTENTION)
        reason = ""
        try:
            found = row.predictors.pick(self._hidden(row))
            if not self._flash and not row.kernels:
                reason = "it has a custom attention"
            elif not self._flash and _has_window(self._base.config) and not row.windows:
                reason = "its layers do not pass the length of their sliding window"
            elif not is_near(found, expected, tolerance(self.policy.autocast_dtype or found.dtype)):
                reason = "packed sequences and single ones give different hidden states"
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
            if is_out_of_memory(error):  # says nothing about packing
                raise
            reason = f"a packed forward pass fails: {(str(error) or type(error).__name__).strip().splitlines()[0]}"
        if reason:
            if attention == "sdpa":
                self._base.set_attn_implementation("sdpa")
            self._not_packed(reason)
            return
        self.packed = True
        if device.type == "cuda" and longest > 1:  # the kernels of training's lengths
            ids = tuple(7 * i % self.vocabulary for i in range(longest))
            row = pack([Completion(ids[:1], ids[1:], (), True)], device, longest, self._share_prompts)
            self._hidden(row)
        self.kernel = " and ".join(sorted(row.kernels)) or self.kernel
        narrow = (self.policy.autocast_dtype or found.dtype) in (torch.float16, torch.bfloat16)
        if device.type == "cuda" and narrow and "buckets" in row.kernels:
            reason = "; ".join(sorted(row.problems))
            self.notes.append(f"packed attention runs in buckets by length, without torch's varlen_attn: {reason}")

    def _not_packed(self, reason: str) -> None:
        self.notes.append(f"{type(self._base).__name__}: log-probabilities are computed with padding, because {reason}")


class _Padded:
    """A batch with prompts padded on the left and completions on the right, without the last column, which predicts
    nothing. Attributes as in :class:`~grpo_train.policy.packing.PackedRow`."""

    def __init__(self, completions: Sequence[Completion], pad_id: int, device: torch.device, width_T: int) -> None:
        self.width_T = width_T
        width_P = max(len(c.prompt_ids) for c in completions)
        width = width_P + width_T - 1
        input_ids = np.full((len(completions), width + 1), pad_id, dtype=np.int64)
        attention_mask = np.zeros_like(input_ids)
        for row, completion in enumerate(completions):
            start, end = width_P - len(completion.prompt_ids), width_P + len(completion.ids)
            input_ids[row, start:end] = [*completion.prompt_ids, *completion.ids]
            attention_mask[row, start:end] = 1
        rows, columns = np.nonzero(attention_mask[:, width_P:])
        self.tokens = sum(len(c.prompt_ids) + max(0, len(c.ids) - 1) for c in completions)
        transfer = ArrayTransfer(device)
        inputs = (input_ids[:, :-1], attention_mask[:, :-1])
        sent = [transfer.add(x) for x in (*inputs, input_ids[rows, width_P + columns], rows * width_T + columns)]
        self.predictors = RowMap(rows * width + width_P - 1 + columns, input_ids.shape[0] * width, transfer)
        transfer.send()
        self.input_ids, self.attention_mask, self.targets, self.slots = (each.tensor for each in sent)

    def model_inputs(self) -> dict[str, Any]:
        position_ids = (self.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "position_ids": position_ids,
            "use_cache": False,
        }


def split_by_tokens(completions: Sequence[Completion], budget: int, max_rows: int = 0) -> list[range]:
    """Consecutive rows with at most ``budget`` prompt and completion tokens (a longer one is alone; 0 = no limit), and
    at most ``max_rows`` of them (0 = no limit)."""
    parts: list[range] = []
    start = tokens = 0
    for row, completion in enumerate(completions):
        length = len(completion.prompt_ids) + len(completion.ids)
        if (budget and row > start and tokens + length > budget) or (max_rows and row - start == max_rows):
            parts.append(range(start, row))
            start, tokens = row, 0
        tokens += length
    return [*parts, range(start, len(completions))] if completions else []


def pad_values(values: Sequence[Sequence[float] | Tensor], width_T: int) -> Tensor:
    """Values per completion and token as (B, T) on the CPU, padded with 0; float32, or float64 if any row is."""
    wide = any(isinstance(row, Tensor) and row.dtype == torch.float64 for row in values)
    padded = torch.zeros((len(values), width_T), dtype=torch.float64 if wide else torch.float32)
    for i, row in enumerate(values):
        padded[i, : len(row)] = torch.as_tensor(row, dtype=padded.dtype)
    return padded


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Evaluation mode (no dropout or checkpointing); restores the mode of each module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _whole_logits(model: Any, reason: str) -> str:
    return f"{type(model).__name__}: log-probabilities are computed from full logits, because {reason}"


def is_near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether the difference is at most ``tolerance`` times the norm of ``expected``."""
    found, expected = found.double(), expected.double()
    return bool((found - expected).norm() <= tolerance * expected.norm())


def tolerance(dtype: torch.dtype) -> float:
    """Relative tolerance of a sum of rounded values; a token that sees another sequence is off by far more."""
    return {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2}.get(dtype, 5e-2)


def _has_window(config: Any) -> bool:
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    return "sliding_attention" in kinds if kinds else getattr(text, "sliding_window", None) is not None
