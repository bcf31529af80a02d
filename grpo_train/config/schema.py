"""The configuration's schema: one model per section, every key documented, unknown keys refused. Torch-free.

:mod:`grpo_train.config` reads it from YAML.
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
"""Short names of ``model.backbone``: a hub id, or a directory relative to the root."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's yes, on and true are no numbers, though Python would count them as 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise PydanticCustomError("truth", "input should not be true or false")
        return value


class Run(Section):
    """How long, how often, how safe."""

    total_steps: PositiveInt = 100
    """Optimizer updates in all; ``step_final`` is set when they are done."""
    save_every: PositiveInt = 10
    """Full training state every so many steps (and always at a stop and at the end)."""
    eval_every: NonNegativeInt = 0
    """Between training stages, evaluate every so many steps (and at the end) in a process of its own; 0 = never."""
    eval_initial: bool = False
    """Evaluate the model that the run starts from, too, before the first step."""
    seed: NonNegativeInt = 0
    """Seed of the data order, of sampling and of new weights."""
    max_restarts: NonNegativeInt = 0
    """How often a crashed training stage is started again from ``step_latest``."""
    nproc: PositiveInt = 1
    """Processes on this box, one a GPU (``--nproc`` overrides it)."""
    keep_last: NonNegativeInt = 0
    """Keep only the newest so many checkpoints (and step_final, and any under evaluation); 0 = all."""
    keep_every: NonNegativeInt = 0
    """With keep_last: every so many steps is a milestone that is kept for good; 0 = none."""


class Model(Section):
    """The policy."""

    backbone: str = "qwen2_5_15"
    """A short name (qwen2_5_05, qwen2_5_15, qwen2_5_3, each also with _instruct; tiny), a Hugging Face causal LM's
    directory, or its hub name, where OWNER/NAME@COMMIT is one of its commits; a run goes on with the one it began with.
    """
    adapter: Literal["none", "lora"] = "lora"
    """What is trained: ``none`` = all weights, ``lora`` = a peft LoRA adapter."""
    lora_rank: PositiveInt = 32
    """Rank of the adapter."""
    lora_alpha: PositiveInt = 64
    """Scale of the adapter: its product is multiplied by alpha / rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout in front of the adapter; only strictly on-policy, where no ratio is taken to a pass without it."""
    lora_targets: str | list[str] = "all-linear"
    """Modules that get an adapter: ``all-linear``, or their names."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto`` = the GPUs, or the CPU on a machine without NVIDIA GPUs; GPUs that torch cannot use are an error."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights and arithmetic: ``auto`` = bfloat16 on CUDA, float32 on a CPU. Full weights on CUDA keep float32 master
    weights and compute in bfloat16."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention kernel of transformers."""


class Rollout(Section):
    """Prompts in, completions out."""

    backend: Literal["transformers"] = "transformers"
    """Who generates."""
    buffer_size: PositiveInt = 32
    """Prompts per rollout buffer, over all processes."""
    num_generations: Annotated[int, Field(ge=2)] = 8
    """Completions per prompt: the group whose mean reward is the baseline."""
    max_prompt_length: PositiveInt = 512
    """Tokens; a longer prompt is left out of training (and counted at start); an evaluation asks every problem."""
    max_completion_length: PositiveInt = 512
    """The generation budget in tokens; also Dr. GRPO's loss normaliser."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling. Below 1 the sampler never draws what the policy would: only with rollout_correction."""
    top_k: NonNegativeInt = 0
    """Sample from the k likeliest tokens; 0 = all. Only with rollout_correction."""
    generation_batch_size: NonNegativeInt = 0
    """Completions generated at once by a process, each that ends making room for the next; 0 = its whole share of the
    buffer. Halved, and said so, where memory does not hold it."""


LossType = Literal["dr_grpo", "grpo", "bnpo", "dapo", "gspo", "cispo"]
CLIP_RANGES: dict[str, tuple[float, float]] = {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "cispo": (0.2, 5.0)}
"""Defaults of ``epsilon`` and ``epsilon_high`` where they are not 0.2 and 0.2: each method's own paper."""


class Algorithm(Section):
    """The estimator; docs/algorithms.md defines every name."""

    loss_type: LossType = "dr_grpo"
    """dr_grpo (constant normaliser), grpo, bnpo, dapo, gspo (sequence-level ratios) or cispo."""
    scale_rewards: Literal["none", "group", "batch"] = "none"
    """What advantages are divided by: nothing (Dr. GRPO), the group's or the whole batch's standard deviation."""
    reward_weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each reward function by name ("accuracy", "overlong"); 1 for those not named."""
    num_iterations: PositiveInt = 1
    """Passes over each rollout buffer; more than one is off-policy and clips."""
    updates_per_buffer: PositiveInt = 1
    """Optimizer updates per pass: the buffer is cut into so many equal parts."""
    epsilon: PositiveFloat | None = None
    """Clip range of the importance ratio, [1 - epsilon, 1 + epsilon_high]; default 0.2 (gspo 0.0003)."""
    epsilon_high: PositiveFloat | None = None
    """Upper clip range; default epsilon (dapo 0.28, gspo 0.0004). For cispo the bound of the ratio itself, 5.0."""
    delta: PositiveFloat | None = None
    """Two-sided clipping: bound of a ratio whose advantage is negative; above 1 + epsilon_high. Default: none."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL penalty (k3) to the model the run started from; 0 = no reference model at all."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of an entropy bonus, the token mean of the policy's entropy."""
    mask_truncated_completions: bool = False
    """Completions that hit the budget take no part in the loss (they stay in their group's mean reward)."""
    overlong_buffer: NonNegativeInt = 0
    """DAPO's soft overlong penalty, as a reward function "overlong": 0 up to max_completion_length minus so many
    tokens, then falling to -1 at the budget. 0 = off."""
    rollout_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "none"
    """Importance weights from the sampler's to the trainer's probabilities: truncated at the cap, or rejected (weight
    0) above it, per token or per completion."""
    rollout_correction_cap: Annotated[float, Field(ge=1)] = 2.0
    """Upper bound of those weights; ess/*_clipped bounds them to [1 / cap, cap]."""
    role_baseline_decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Self-play: decay per game of each role's running mean return, which is its baseline (SPIRAL's value)."""
    noise_scale: bool = True
    """Measure the gradient noise scale; changes no number of the training."""
    noise_scale_decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay per step of its two running averages."""

    @model_validator(mode="after")
    def _clip_ranges(self) -> Algorithm:
        low, high = CLIP_RANGES.get(self.loss_type, (0.2, None))
        if self.epsilon_high is None:
            # What a user says about epsilon holds for both sides, except where the upper bound is another thing.
            self.epsilon_high = high if self.epsilon is None or self.loss_type == "cispo" else self.epsilon
        self.epsilon = low if self.epsilon is None else self.epsilon
        self.epsilon_high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.loss_type == "cispo" and self.epsilon_high < 1:
            raise ValueError(
                f"algorithm.epsilon_high {self.epsilon_high} would shrink every ratio: for cispo it is the bound of "
                "the ratio itself, 1 or more (5.0 is usual)"
            )
        if self.loss_type == "cispo" and self.delta is not None:
            raise ValueError("algorithm.delta takes no part in cispo: leave it out")
        if self.delta is not None and self.delta <= 1 + self.epsilon_high:
            raise ValueError(
                f"algorithm.delta {self.delta} must lie above 1 + epsilon_high = {1 + self.epsilon_high:g}: "
                "it bounds what the clip range leaves open"
            )
        return self


class Optimizer(Section):
    """AdamW."""

    learning_rate: PositiveFloat = 1e-6
    """Constant after the warm-up."""
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
    """The gradient's global norm is clipped to this."""


class Train(Section):
    """How a buffer becomes an update; none of these keys changes a number."""

    microbatch_size: PositiveInt = 2
    """Prompts (each with all its completions) per forward and backward of one process."""
    tf_micro_batch: PositiveInt = 32
    """Completions per forward without gradient."""
    token_budget: NonNegativeInt = 0
    """Tokens (prompts and completions) per forward and backward at most: a longer micro-batch is cut; 0 = no limit. The
    pieces' gradient is held beside the step's: it saves activations and costs the size of the trained weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    packing: bool = True
    """Sequences of a micro-batch side by side in one row, without padding."""
    chunked_logprobs: bool = True
    """Log-probabilities in chunks from hidden states: logits over the vocabulary are never held for all tokens."""
    skip_zero_advantages: bool = True
    """Completions whose gradient is exactly zero (groups without spread) leave forward and backward."""


class Task(Section):
    """What is asked, what is right, and what that is worth."""

    name: str = "gsm8k"
    """A task of ``grpo_train/tasks`` (``grpo-train tasks`` lists them), or one of your own: ``module:function``."""
    path: str | None = None
    """The task's data: a JSONL file, or a directory with train.jsonl and test.jsonl. Without it gsm8k and mbpp come
    from the hub."""
    limit: PositiveInt | None = None
    """Use only the first so many training problems (100 rows to overfit on)."""
    level: Annotated[int, Field(ge=1, le=10)] = 1
    """Generated tasks (addition has digits alone): how hard, 1 to 10; each task's file says what grows with it."""
    digits: Annotated[int, Field(ge=1, le=6)] = 2
    """addition, arithmetic, comparison: digits of each number."""
    operators: str = "+-"
    """arithmetic: which of + - * are asked."""
    template: str | None = None
    """How a question becomes a prompt: r1, chat (the model's own chat template), question (nothing around it), compact
    (generated tasks), paper or docstring (mbpp), or a text of your own with {question} in it. Default: the task's
    own."""
    system_prompt: str | None = None
    """With template chat: the system message."""
    few_shot: Annotated[int, Field(ge=0, le=8)] = 0
    """mbpp: solved examples in the prompt (3 = as published)."""
    visible_tests: Annotated[int, Field(ge=0)] = 1
    """mbpp: tests shown in the prompt; a program is judged by all of them, so that hard-coding these does not pay."""
    prompt_field: str = "prompt"
    """jsonl: the field that holds the question."""
    answer_field: str = "answer"
    """jsonl: the field that holds the gold answer."""
    template_field: str = "template"
    """jsonl: the field that holds a row's own template, where it has one."""
    grader: str = "number"
    """jsonl: how an answer is compared: number, text, math, or your own ``module:function``."""
    dataset: str = "leg_counting"
    """reasoning_gym: which of its datasets."""
    opponent: str = "start"
    """code_game: who predicts: ``start`` (the model the run started from), or a model's or checkpoint's directory."""
    invalid_move_return: float = -1.5
    """Games: what the match is worth to who writes no legal move; it ends there (SPIRAL's value)."""
    invalid_move_other_return: float = 0.5
    """Games: what it is then worth to the other player."""
    rewards: list[str] = Field(default_factory=list)
    """Reward functions: accuracy, format, tag_count, reasoning, correct_and_short, score, or your own
    ``module:function``. Empty: the task's own. algorithm.reward_weights weighs them."""
    reward_control: Literal["none", "random", "inverted", "format_only"] = "none"
    """Replaces every reward by a control, for honest baselines."""
    correct_reward: float = 2.0
    """accuracy: reward of a right answer in the right format."""
    incorrect_reward: float = 0.0
    """accuracy: reward of every other completion."""


class Sandbox(Section):
    """Where programs that a model wrote are run."""

    cpu_seconds: PositiveFloat = 3.0
    """Processor time of one program."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Address space of one program."""
    workers: NonNegativeInt = 0
    """Programs run at once by a process; 0 = its share of the cores."""
    allow_weak: bool = False
    """Run programs even where the kernel lacks seccomp or Landlock: they can then read what you can read."""


class Eval(Section):
    """Evaluation, always in a process of its own."""

    datasets: list[str] = Field(default_factory=list)
    """Tasks that the scheduled evaluations (run.eval_every) use; empty: the task that is trained."""
    split: Literal["test", "validation", "train"] = "test"
    """Which problems; train to see whether a run has overfitted as it was meant to."""
    batch_size: PositiveInt | Literal["auto"] = 32
    """Completions generated at once; auto = what free memory holds."""
    max_completion_length: PositiveInt | None = None
    """Generation budget in tokens; default ``rollout.max_completion_length``."""
    temperature: NonNegativeFloat | None = None
    """0 = greedy. Default: the task's own (0; mbpp 0.2)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling."""
    num_samples: PositiveInt = 1
    """Completions of each problem, for pass@k and maj@k."""
    subset_frac: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the split, seeded and nested: a larger share contains the smaller."""
    num_problems: PositiveInt | None = None
    """At most so many problems, seeded and nested like subset_frac."""
    opponents: list[str] = Field(default_factory=list)
    """Games: who is played against: the game's own players by name (random, minimax, …) and checkpoints by their
    directory (training_runs/RUN/training_state/step_N). Empty: all of the game's own."""
    problem_seconds: PositiveFloat = 10.0
    """Tasks that run code: processor time that all tests of one problem may take."""
    nproc: PositiveInt = 1
    """Processes, one a GPU; each takes its own share of the problems."""
    timeout: PositiveFloat = 3600.0
    """Seconds that one checkpoint's evaluation may take."""


class Tracking(Section):
    """Where numbers go besides the JSON lines."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    gpu_interval: PositiveFloat = 2.0
    """Seconds between GPU samples."""


class Config(Section):
    """A run's whole configuration."""

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
    def _divides(self) -> Config:
        updates = self.algorithm.updates_per_buffer
        per_pass = self.run.nproc * self.train.microbatch_size * updates
        below = self.rollout.buffer_size // per_pass * per_pass
        if below != self.rollout.buffer_size:
            nearest = [str(size) for size in (below, below + per_pass) if size]
            raise ValueError(
                f"rollout.buffer_size {self.rollout.buffer_size} does not divide by run.nproc {self.run.nproc} x "
                f"train.microbatch_size {self.train.microbatch_size} "
                + (f"x algorithm.updates_per_buffer {updates} " if updates > 1 else "")
                + f"= {per_pass}: every process must make the same number of forward/backward passes "
                f"(nearest that does: {' or '.join(nearest)})"
            )
        return self

    @model_validator(mode="after")
    def _samples_what_it_trains(self) -> Config:
        if self.model.lora_dropout and self.steps_per_buffer > 1:
            raise ValueError(
                f"model.lora_dropout {self.model.lora_dropout} with {self.steps_per_buffer} updates from a buffer: "
                "ratios to the policy before would be noise that clips; set it to 0, or num_iterations and "
                "updates_per_buffer to 1"
            )
        cut = [f"rollout.{key} {value:g}" for key, value, full in self._sampling() if value != full]
        if cut and self.algorithm.rollout_correction == "none":
            raise ValueError(
                f"{' and '.join(cut)}: training would sample from a cut distribution and take the gradient of the "
                "full one; leave it out, or set algorithm.rollout_correction (token_truncate, …)"
            )
        if self.algorithm.overlong_buffer >= self.rollout.max_completion_length:
            raise ValueError(
                f"algorithm.overlong_buffer {self.algorithm.overlong_buffer} must be shorter than "
                f"rollout.max_completion_length {self.rollout.max_completion_length}"
            )
        return self

    def _sampling(self) -> tuple[tuple[str, float, float], ...]:
        return ("top_p", self.rollout.top_p, 1.0), ("top_k", self.rollout.top_k, 0)

    @property
    def grad_accum_steps(self) -> int:
        """Micro-batches per process and optimizer update."""
        updates = self.algorithm.updates_per_buffer
        return self.rollout.buffer_size // (updates * self.run.nproc * self.train.microbatch_size)

    @property
    def steps_per_buffer(self) -> int:
        """Optimizer updates made from one rollout buffer."""
        return self.algorithm.num_iterations * self.algorithm.updates_per_buffer
