"""Schema of a training config: one model per section, every key documented, unknown keys rejected. Torch-free.

The docstrings of sections and keys are user documentation: ``grpo-train schema`` prints them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

INT_MAX = 2**31 - 1
PositiveInt = Annotated[int, Field(gt=0, le=INT_MAX)]
NonNegativeInt = Annotated[int, Field(ge=0, le=INT_MAX)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]

BACKBONES = {
    "tiny": "models/tiny",
    "qwen2_5_05": "Qwen/Qwen2.5-0.5B",
    "qwen2_5_15": "Qwen/Qwen2.5-1.5B",
    "qwen2_5_3": "Qwen/Qwen2.5-3B",
    "qwen2_5_05_instruct": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2_5_15_instruct": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2_5_3_instruct": "Qwen/Qwen2.5-3B-Instruct",
}
"""Short names for ``model.backbone``: a hub ID, or a directory relative to the root."""


def conflict(message: str, *keys: str) -> PydanticCustomError:
    """An error about several keys; it is located at the first of ``keys`` (``section.key``) that the user set."""
    return PydanticCustomError("conflict", "{message}", {"message": message, "keys": list(keys)})


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_booleans_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject YAML's yes, on and true for numbers, which Python would read as 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise PydanticCustomError("boolean", "input should not be true or false")
        return value


class Run(Section):
    """Run length, save and evaluation schedule, restarts."""

    total_steps: PositiveInt = 100
    """Number of optimizer updates."""
    save_every: PositiveInt = 10
    """Save the full training state every N steps. It is also saved on stop and at the end."""
    eval_every: NonNegativeInt = 0
    """Pause training every N steps, and at the end, to evaluate in a separate process; 0 = never."""
    eval_initial: bool = False
    """Also evaluate the starting model before the first step."""
    seed: NonNegativeInt = 0
    """Seed of data order, sampling and new weights."""
    max_restarts: NonNegativeInt = 0
    """Maximum number of restarts after crashes, each from the latest checkpoint."""
    nproc: PositiveInt = 1
    """Number of processes on this machine, one per GPU."""
    keep_last: NonNegativeInt = 0
    """Keep only the newest N checkpoints, step_final and checkpoints being evaluated; 0 = keep all."""
    keep_every: NonNegativeInt = 0
    """With keep_last: also keep every checkpoint whose step is a multiple of N; 0 = none."""


class Model(Section):
    """The model to train."""

    backbone: str = "qwen2_5_15"
    """Base model: a short name (tiny, qwen2_5_05, qwen2_5_15, qwen2_5_3; all but tiny also with _instruct), a directory
    with a Hugging Face causal LM, or a hub ID, optionally OWNER/NAME@COMMIT. Hub models are pinned to the commit that
    the run started with."""
    adapter: Literal["none", "lora"] = "lora"
    """What is trained: ``none`` = all weights, ``lora`` = a peft LoRA adapter."""
    lora_rank: PositiveInt = 32
    """Rank of the adapter."""
    lora_alpha: PositiveInt = 64
    """Scale of the adapter: its output is multiplied by lora_alpha / lora_rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapter. Requires one update per buffer: otherwise dropout noise would trigger clipping."""
    lora_targets: str | list[str] = "all-linear"
    """Modules that get an adapter: ``all-linear``, or a list of names."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device: ``auto`` = the GPUs, or the CPU on a machine without NVIDIA GPUs. GPUs that torch cannot use are an
    error."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of weights and arithmetic: ``auto`` = bfloat16 on CUDA, float32 on a CPU. Full-weight training on CUDA
    keeps float32 master weights and computes in bfloat16."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers."""


class Rollout(Section):
    """Generation of completions for training."""

    backend: Literal["transformers"] = "transformers"
    """Generation backend."""
    buffer_size: PositiveInt = 32
    """Prompts per rollout buffer, over all processes."""
    num_generations: Annotated[int, Field(ge=2)] = 8
    """Completions per prompt. They form a group, whose mean reward is the baseline."""
    max_prompt_length: PositiveInt = 512
    """Maximum prompt length in tokens. Longer prompts are excluded from training, and counted at startup; evaluations
    use every problem."""
    max_completion_length: PositiveInt = 512
    """Generation budget in tokens; also the loss normalizer of Dr. GRPO."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling. Below 1 the sampler differs from the policy, so it requires algorithm.rollout_correction."""
    top_k: NonNegativeInt = 0
    """Sample from the k most likely tokens; 0 = all. Requires algorithm.rollout_correction."""
    generation_batch_size: NonNegativeInt = 0
    """Completions that a process generates at once; a finished one makes room for the next. 0 = its whole share of the
    buffer. Halved, with a message, when memory runs out."""


LossType = Literal["dr_grpo", "grpo", "bnpo", "dapo", "gspo", "cispo"]
CLIP_RANGES: dict[str, tuple[float, float]] = {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "cispo": (0.2, 5.0)}
"""Defaults of ``epsilon`` and ``epsilon_high`` other than 0.2 and 0.2, from each method's paper."""


class Algorithm(Section):
    """Loss and advantage estimator; docs/algorithms.md defines every name."""

    loss_type: LossType = "dr_grpo"
    """Loss: dr_grpo (constant normalizer), grpo, bnpo, dapo, gspo (sequence-level ratios) or cispo."""
    scale_rewards: Literal["none", "group", "batch"] = "none"
    """Divisor of the advantages: none (Dr. GRPO), or the standard deviation of the group or of the whole batch."""
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
        if self.loss_type == "cispo" and self.delta is not None:
            raise conflict("algorithm.delta has no effect on cispo; remove it", "algorithm.delta")
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
    """Learning rate, constant after the warmup. LoRA usually needs about ten times the rate of full weights."""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises linearly from 0."""
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

    microbatch_size: PositiveInt = 2
    """Prompts, each with all its completions, per forward and backward pass of a process."""
    tf_micro_batch: PositiveInt = 32
    """Completions per forward pass without gradient."""
    token_budget: NonNegativeInt = 0
    """Maximum tokens (prompts and completions) per forward and backward pass; longer micro-batches are split. 0 = no
    limit. Saves activations, but the gradient of the parts needs extra memory the size of the trained weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    packing: bool = True
    """Pack the sequences of a micro-batch into one row without padding."""
    chunked_logprobs: bool = True
    """Compute log-probabilities in chunks from hidden states, without keeping the logits of all tokens in memory."""
    skip_zero_advantages: bool = True
    """Skip completions with zero gradient (groups in which all rewards are equal)."""


class Task(Section):
    """Prompts, and how completions are rewarded."""

    name: str = "gsm8k"
    """Task name (``grpo-train tasks`` lists them), or your own task as ``module:function``."""
    path: str | None = None
    """JSONL file, or directory with train.jsonl and test.jsonl. Default: the Hugging Face hub, for tasks with a dataset
    there."""
    limit: PositiveInt | None = None
    """Use only the first N training problems."""
    level: Annotated[int, Field(ge=1, le=10)] = 1
    """Generated tasks except addition: difficulty, 1 to 10."""
    digits: Annotated[int, Field(ge=1, le=6)] = 2
    """addition, arithmetic, comparison: digits of each number."""
    operators: str = "+-"
    """arithmetic: operators to use, any of + - *."""
    template: str | None = None
    """Prompt template: r1, chat (the model's chat template), question (the question alone), compact (generated tasks),
    paper or docstring (mbpp), or a text with {question} in it. Default: set by the task."""
    system_prompt: str | None = None
    """System message for template chat."""
    few_shot: Annotated[int, Field(ge=0, le=8)] = 0
    """mbpp: number of solved examples in the prompt (as published: 3)."""
    visible_tests: Annotated[int, Field(ge=0)] = 1
    """mbpp: number of tests shown in the prompt. Programs are judged by all tests, so hard-coding does not pay."""
    prompt_field: str = "prompt"
    """jsonl: field with the question."""
    answer_field: str = "answer"
    """jsonl: field with the gold answer."""
    template_field: str = "template"
    """jsonl: optional field with a row's own template."""
    grader: str = "number"
    """jsonl: answer comparison: number, text, math, or your own ``module:function``."""
    dataset: str = "leg_counting"
    """reasoning_gym: name of the dataset."""
    opponent: str = "start"
    """code_game: predicting model: ``start`` (the run's starting model), or the directory of a model or checkpoint."""
    invalid_move_return: float = -1.5
    """Games: return of a player whose move is illegal or missing, which ends the game (default: SPIRAL's)."""
    invalid_move_other_return: float = 0.5
    """Games: return of the other player in that case."""
    rewards: list[str] = Field(default_factory=list)
    """Reward functions: accuracy, format, tag_count, reasoning, correct_and_short, score, or your own
    ``module:function``, weighted by algorithm.reward_weights. Empty: set by the task."""
    reward_control: Literal["none", "random", "inverted", "format_only"] = "none"
    """Negative control in place of every reward: with it, accuracy must not improve."""
    correct_reward: float = 2.0
    """accuracy: reward of a correct answer in the correct format."""
    incorrect_reward: float = 0.0
    """accuracy: reward of any other completion."""


class Sandbox(Section):
    """Isolation of programs written by the model."""

    cpu_seconds: PositiveFloat = 3.0
    """CPU time limit of a program, in seconds."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Address space limit of a program, in MB."""
    workers: NonNegativeInt = 0
    """Programs that a process runs at once; 0 = its share of the cores."""
    allow_weak: bool = False
    """Run programs even if the kernel lacks seccomp or Landlock. They can then read every file that you can read."""


class Eval(Section):
    """Evaluation, always in a separate process."""

    datasets: list[str] = Field(default_factory=list)
    """Tasks of the scheduled evaluations (run.eval_every). Empty: the trained task."""
    split: Literal["test", "validation", "train"] = "test"
    """Split to evaluate; train shows whether a run has overfitted."""
    batch_size: PositiveInt | Literal["auto"] = 32
    """Completions generated at once; auto = as many as memory holds."""
    max_completion_length: PositiveInt | None = None
    """Generation budget in tokens. Default: rollout.max_completion_length."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; 0 = greedy. Default: set by the task (0; mbpp: 0.2)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling."""
    num_samples: PositiveInt = 1
    """Completions per problem, for pass@k and maj@k."""
    subset_frac: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the split (seeded, nested subsets)."""
    num_problems: PositiveInt | None = None
    """Maximum number of problems (seeded, nested subsets)."""
    opponents: list[str] = Field(default_factory=list)
    """Games: opponents, by name (random, minimax, …) or checkpoint directory (training_runs/RUN/training_state/step_N).
    Empty: all built-in opponents of the game."""
    problem_seconds: PositiveFloat = 10.0
    """Tasks that run code: CPU time limit of all tests of one problem, in seconds."""
    nproc: PositiveInt = 1
    """Number of processes, one per GPU; the problems are divided among them."""
    timeout: PositiveFloat = 3600.0
    """Time limit of one checkpoint's evaluation, in seconds."""


class Tracking(Section):
    """Metrics besides the JSONL logs."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    gpu_interval: PositiveFloat = 2.0
    """Seconds between GPU samples."""


class Config(Section):
    """Training config."""

    run: Run = Field(default_factory=Run)
    model: Model = Field(default_factory=Model)
    rollout: Rollout = Field(default_factory=Rollout)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    train: Train = Field(default_factory=Train)
    task: Task = Field(default_factory=Task)
    sandbox: Sandbox = Field(default_factory=Sandbox)
    eval: Eval = Field(default_factory=Eval)
    tracking: Tracking = Field(default_factory=Tracking)

    @model_validator(mode="after")
    def _check_divisibility(self) -> Config:
        updates = self.algorithm.updates_per_buffer
        per_pass = self.run.nproc * self.train.microbatch_size * updates
        below = self.rollout.buffer_size // per_pass * per_pass
        if below != self.rollout.buffer_size:
            nearest = [str(size) for size in (below, below + per_pass) if size]
            raise conflict(
                f"rollout.buffer_size {self.rollout.buffer_size} is not divisible by run.nproc {self.run.nproc} x "
                f"train.microbatch_size {self.train.microbatch_size} "
                + (f"x algorithm.updates_per_buffer {updates} " if updates > 1 else "")
                + f"= {per_pass}; every process must make the same number of forward and backward passes "
                f"(nearest sizes: {' or '.join(nearest)})",
                *("rollout.buffer_size", "run.nproc", "train.microbatch_size", "algorithm.updates_per_buffer"),
            )
        return self

    @model_validator(mode="after")
    def _check_sampling(self) -> Config:
        if self.model.lora_dropout and self.steps_per_buffer > 1:
            raise conflict(
                f"model.lora_dropout {self.model.lora_dropout} with {self.steps_per_buffer} updates per buffer: "
                "dropout noise would trigger clipping; set it to 0, or num_iterations and updates_per_buffer to 1",
                *("model.lora_dropout", "algorithm.num_iterations", "algorithm.updates_per_buffer"),
            )
        sampling = (("top_p", self.rollout.top_p, 1.0), ("top_k", self.rollout.top_k, 0))
        truncated = {f"rollout.{key}": value for key, value, full in sampling if value != full}
        if truncated and self.algorithm.rollout_correction == "none":
            raise conflict(
                f"{' and '.join(f'{key} {value:g}' for key, value in truncated.items())}: truncated sampling with an "
                "untruncated gradient is biased; remove it or set algorithm.rollout_correction (token_truncate, …)",
                *truncated,
            )
        if self.algorithm.overlong_buffer >= self.rollout.max_completion_length:
            raise conflict(
                f"algorithm.overlong_buffer {self.algorithm.overlong_buffer} must be shorter than "
                f"rollout.max_completion_length {self.rollout.max_completion_length}",
                *("algorithm.overlong_buffer", "rollout.max_completion_length"),
            )
        return self

    @property
    def grad_accum_steps(self) -> int:
        """Micro-batches per process and optimizer update."""
        updates = self.algorithm.updates_per_buffer
        return self.rollout.buffer_size // (updates * self.run.nproc * self.train.microbatch_size)

    @property
    def steps_per_buffer(self) -> int:
        """Optimizer updates made from one rollout buffer."""
        return self.algorithm.num_iterations * self.algorithm.updates_per_buffer
