"""``algorithm``, ``optimizer`` and ``train``: loss, update, memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from grpo_train.config.sections.base import (
    NameOrFunction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    conflict,
)

LOSSES = ("dr_grpo", "grpo", "bnpo", "dapo", "gspo", "cispo", "sapo", "dppo")
CLIP_RANGES: dict[str, tuple[float, float]] = {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "cispo": (0.2, 5.0)}
"""Defaults of ``epsilon`` and ``epsilon_high`` other than 0.2 and 0.2, from each method's paper."""
NO_DELTA = ("cispo", "sapo", "dppo")
"""Losses that do not clip a ratio to a range."""


class Algorithm(Section):
    """Loss and advantage estimator; docs/algorithms.md defines every name."""

    loss_type: Annotated[str, NameOrFunction(LOSSES)] = "dr_grpo"
    """Loss: dr_grpo (constant normalizer), grpo, bnpo, dapo, gspo (sequence-level ratios), cispo, sapo (a smooth gate),
    dppo (bounds of a probability), or your own as ``file.py:function``."""
    scale_rewards: Literal["none", "group", "batch", "mean"] = "none"
    """Divisor of the advantages: none (Dr. GRPO), the standard deviation of the group or of the whole batch, or the
    mean of the group (MaxRL; rewards of 0 or more)."""
    reward_weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each reward function by name (accuracy, overlong, …); 1 for names not listed."""
    num_iterations: PositiveInt = 1
    """Passes over each rollout buffer. More than one is off-policy, and ratios are clipped."""
    updates_per_buffer: PositiveInt = 1
    """Optimizer updates per pass: the buffer is split into N equal parts."""
    epsilon: PositiveFloat | None = None
    """Lower clip range: ratios are clipped to [1 - epsilon, 1 + epsilon_high]. Default: 0.2 (gspo: 0.0003)."""
    epsilon_high: PositiveFloat | None = None
    """Upper clip range. Default: epsilon (dapo: 0.28, gspo: 0.0004). For cispo the maximum ratio, default 5.0."""
    delta: PositiveFloat | None = None
    """Two-sided clipping: maximum ratio of completions with a negative advantage, above 1 + epsilon_high. Default: no
    limit."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL penalty (k3) to the starting model; 0 = no reference model in memory."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of an entropy bonus (mean over tokens)."""
    mask_truncated_completions: bool = False
    """Exclude completions that reached the generation budget from the loss; they still count in their group's mean."""
    overlong_buffer: NonNegativeInt = 0
    """DAPO's soft overlong penalty as the reward function ``overlong``: 0 until N tokens before the generation budget,
    then falling to -1 at the budget. 0 = off."""
    rollout_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "none"
    """Importance weights between sampler and trainer probabilities, per token or per completion: truncated at
    rollout_correction_cap, or set to 0 above it (mask)."""
    rollout_correction_cap: Annotated[float, Field(ge=1)] = 2.0
    """Upper bound of the rollout_correction weights; the metrics ess/*_clipped clip them to [1 / cap, cap]."""
    role_baseline_decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Self-play: decay per game of each role's mean return, which is its baseline (default: SPIRAL's)."""
    noise_scale: bool = True
    """Measure the gradient noise scale. Does not affect training."""
    noise_scale_decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay per step of the noise scale's running averages."""

    @model_validator(mode="after")
    def _clip_ranges(self) -> Algorithm:
        low, high = CLIP_RANGES.get(self.loss_type, (0.2, None))
        if self.epsilon_high is None:
            # A given epsilon applies to both sides, except where epsilon_high is a bound of the ratio itself.
            self.epsilon_high = high if self.epsilon is None or self.loss_type == "cispo" else self.epsilon
        self.epsilon = low if self.epsilon is None else self.epsilon
        self.epsilon_high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.loss_type == "cispo" and self.epsilon_high < 1:
            raise conflict(
                f"algorithm.epsilon_high {self.epsilon_high} would shrink every ratio; for cispo it is the maximum "
                "ratio and must be at least 1 (usually 5.0)",
                "algorithm.epsilon_high",
            )
        if self.loss_type in NO_DELTA and self.delta is not None:
            raise conflict(f"algorithm.delta has no effect on {self.loss_type}; remove it", "algorithm.delta")
        if self.delta is not None and self.delta <= 1 + self.epsilon_high:
            raise conflict(
                f"algorithm.delta {self.delta} must be above 1 + epsilon_high = {1 + self.epsilon_high:g}, "
                "the end of the clip range",
                "algorithm.delta",
            )
        return self


class Optimizer(Section):
    """AdamW."""

    learning_rate: PositiveFloat = 1e-6
    """Learning rate after the warmup. LoRA usually needs about ten times the rate of full weights."""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warmup: it stays, or falls until run.total_steps. A resume with more steps
    follows the longer curve from there on."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """linear, cosine: share of the learning rate at the end."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment."""
    adam_epsilon: PositiveFloat = 1e-8
    """Term added to the denominator."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum global norm of the gradient; larger gradients are clipped to it."""


class Train(Section):
    """Memory and speed of the update; no key of this section changes the result."""

    microbatch_size: PositiveInt | Literal["auto"] = 2
    """Prompts, each with all its completions, per forward and backward pass of a process. auto = as many as are
    estimated to fit in the GPU's memory (``grpo-train fit`` measures). A step that runs out of memory is repeated in
    smaller passes."""
    tf_micro_batch: PositiveInt | Literal["auto"] = 32
    """Completions per forward pass without gradient; auto = as microbatch_size."""
    token_budget: NonNegativeInt | Literal["auto"] = "auto"
    """Maximum tokens (prompts and completions) per forward and backward pass; longer micro-batches are split. 0 = no
    limit. auto = as many as fit in memory, measured in the first step (on a CPU: estimated), at least 8192 (with
    run.deterministic always 8192); where not even one completion fits, activations are recomputed. Saves activations,
    but the gradient of the parts needs extra memory the size of the trained weights."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile transformer blocks for passes with a gradient. auto = on a GPU if it is faster in a trial at startup; not
    on a CPU, where compiling takes minutes. Where compiling fails, training continues without it and says so."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    packing: bool = True
    """Pack the sequences of a micro-batch into one row without padding."""
    chunked_logprobs: bool = True
    """Compute log-probabilities in chunks from hidden states, without keeping the logits of all tokens in memory."""
    skip_zero_advantages: bool = True
    """Skip completions with zero gradient (groups in which all rewards are equal)."""
