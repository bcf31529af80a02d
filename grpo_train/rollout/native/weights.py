"""The copy of a model that completions are drawn from: its adapter merged in, rounded once to the compute type.

An adapter that is merged into its base and taken out again in place leaves rounding errors that add up (1,000 times in
bfloat16: two thirds of a weight, github.com/huggingface/trl/issues/6688). Here the base is only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor

from grpo_train.policy.memory import is_out_of_memory
from grpo_train.rollout.native.fused import fuse
from grpo_train.rollout.native.slots import ATTENTION, ATTENTION_INSIDE, LAYER, DecodingStep, Prompts, Slots


class UnsupportedModelError(Exception):
    """The native backend cannot run this model; the message gives the reason."""


@contextmanager
def named_unsupported() -> Iterator[None]:
    """Raise UnsupportedModelError for whatever a model's own code raises, except where memory runs out."""
    try:
        yield
    except UnsupportedModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        sentence = (str(error).strip().splitlines() or [""])[0].partition(". ")[0]
        raise UnsupportedModelError(sentence if " " in sentence else repr(error)) from error


@dataclass(frozen=True)
class _Own:
    """A weight that the copy does not share with the policy."""

    target: Tensor
    source: Tensor
    adapter: Any
    """peft's layer; None for a weight without an adapter."""


class FrozenCopy:
    """A transformers model like the policy's, without adapter, gradients and dropout.

    It shares the weights that are never trained and have the compute type already. The others have storage of their
    own, which :meth:`sync` writes in place, so that addresses never change.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None = None, *, is_fused: bool = False) -> None:
        """Copy ``model``, with or without a LoRA adapter.

        Args:
            dtype: compute type; None = that of the model's embedding.
            is_fused: compute linear layers of one input together.

        Raises UnsupportedModelError.
        """
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        dtype = dtype or base.get_input_embeddings().weight.dtype
        with named_unsupported(), torch.device("meta"), torch.random.fork_rng(devices=[]):
            self.model = type(base)._from_config(deepcopy(base.config), attn_implementation=ATTENTION, dtype=dtype)
        self.model.generation_config = base.generation_config
        self._attention = ATTENTION
        self._own: list[_Own] = []
        with named_unsupported():
            self._fill(base, dtype)
        if is_fused:
            moved = fuse(self.model, {each.target.data_ptr() for each in self._own})
            self._own = [replace(each, target=moved.get(each.target.data_ptr(), each.target)) for each in self._own]
        self.model.requires_grad_(False).eval()
        self.device: torch.device = self.model.device
        # transformers passes a 4-D mask on and builds no other; our attention ignores it.
        self._unused = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.device)
        self.sync()

    def logits(
        self, slots: Slots, work: Prompts | DecodingStep, ids: Tensor, positions: Tensor, keep: Tensor | int
    ) -> Tensor:
        """Logits of a forward pass that writes and reads ``slots``.

        Args:
            ids, positions: (1, N) for prompts, (B, 1) for a step.
            keep: ``logits_to_keep`` of transformers: indices in the row, or the number of last tokens.
        """
        slots.work = work
        is_compiled, is_step = self._attention != ATTENTION, isinstance(work, DecodingStep)
        if self._attention == ATTENTION_INSIDE and is_step:
            for module in self._attentions:
                setattr(module, LAYER, slots.layers[module.layer_idx])
        # Rows of prompts have another length each time.
        with torch.compiler.set_stance("force_eager") if is_compiled and not is_step else nullcontext():
            logits: Tensor = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=self._unused,
                use_cache=False,
                logits_to_keep=keep,
                slots=slots,
            ).logits
        return logits

    def compile(self, backend: str, attention: str) -> None:
        """Compile the decoder layers, for steps only; all layers use the same code.

        ``attention``: ``ATTENTION_APART``, or ``ATTENTION_INSIDE`` for slots with FlashAttention.
        """
        self._set_layers(attention)
        for layer in self._layers():
            layer.compile(backend=backend)

    def leave_compiled(self) -> None:
        """Undo :meth:`compile`."""
        self._set_layers(ATTENTION)
        for layer in self._layers():
            layer._compiled_call_impl = None

    @contextmanager
    def own_attention(self) -> Iterator[Any]:
        """The model with transformers' attention, in place of that over slots."""
        self.model.set_attn_implementation("sdpa")
        try:
            yield self.model
        finally:
            self.model.set_attn_implementation(self._attention)

    @torch.no_grad()
    def sync(self) -> None:
        """Take over the policy's weights: W = round(W_base + s·B·A), summed in float32 (float64 for float64)."""
        for each in self._own:
            merged = each.source
            if each.adapter is not None and not each.adapter.disable_adapters:
                merged = each.source.to(torch.promote_types(each.source.dtype, torch.float32))
                for name in each.adapter.active_adapters:
                    if name in each.adapter.lora_A:
                        merged = merged + each.adapter.get_delta_weight(name).to(merged.dtype)
            each.target.copy_(merged)

    def _set_layers(self, attention: str) -> None:
        self._attention = attention
        for module in self._attentions:
            setattr(module, LAYER, None)
        self.model.set_attn_implementation(attention)

    @property
    def _attentions(self) -> list[Any]:
        return [module for module in self.model.modules() if hasattr(module, "layer_idx") and hasattr(module, "q_proj")]

    def _layers(self) -> list[Any]:
        names = set(self.model._no_split_modules or ())
        return [module for module in self.model.modules() if type(module).__name__ in names]

    def _fill(self, base: Any, dtype: torch.dtype) -> None:
        """Replace the copy's empty weights and buffers."""
        adapters = _adapters(base)
        copies: dict[int, Tensor] = {}
        named = base.named_parameters(remove_duplicate=False)
        sources = {name.replace(".base_layer.", "."): weight for name, weight in named}
        for name, _ in list(self.model.named_parameters(remove_duplicate=False)):
            source, adapter = sources[name], adapters.get(name)
            if adapter is None and source.dtype == dtype and not source.requires_grad:
                weight: Tensor = source.detach()
            elif adapter is None and id(source) in copies:  # tied weights
                weight = copies[id(source)]
            else:
                weight = torch.empty_like(source, dtype=dtype, requires_grad=False)
                self._own.append(_Own(weight, source, adapter))
                if adapter is None:
                    copies[id(source)] = weight
            _set(self.model, name, torch.nn.Parameter(weight, requires_grad=False))
        modules = dict(base.named_modules())
        for name, module in self.model.named_modules():
            original = modules.get(name)
            for key, value in [*module._buffers.items(), *vars(module).items()]:
                if isinstance(value, Tensor) and value.is_meta:
                    setattr(module, key, getattr(original, key).detach().clone())


def _adapters(base: Any) -> dict[str, Any]:
    """peft's layers by the name of the weight that they change."""
    found: dict[str, Any] = {}
    for name, module in base.named_modules():
        if isinstance(module, AuxiliaryTrainingWrapper):
            raise UnsupportedModelError(f"{name} is trained beside the adapter")
        if not isinstance(module, BaseTunerLayer):
            continue
        if not isinstance(module, LoraLinear) or module.lora_variant or any(module.lora_bias.values()):
            raise UnsupportedModelError(f"{name} has an adapter other than LoRA of a linear layer")
        found[f"{name}.weight"] = module
    return found


def _set(model: Any, name: str, weight: torch.nn.Parameter) -> None:
    parent, _, key = name.rpartition(".")
    setattr(model.get_submodule(parent), key, weight)
