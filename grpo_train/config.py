"""The configuration of a run: one model per section, every key documented, unknown keys refused by name.

``load_config`` turns a YAML text (and ``section.key=value`` overrides) into a checked :class:`Config`; every problem
is reported with the file, the line, the key and, where a name was misspelled, the nearest known one. Torch-free.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
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


class ConfigError(Exception):
    """A configuration that cannot be used; the message has one line a problem, each with its way out."""


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
    """Between training stages, evaluate every so many steps in a process of its own; 0 = never."""
    seed: NonNegativeInt = 0
    """Seed of the data order, of sampling and of new weights."""
    max_restarts: NonNegativeInt = 0
    """How often a crashed training stage is started again from ``step_latest``."""
    nproc: PositiveInt = 1
    """Processes on this box, one a GPU (``--nproc`` overrides it)."""


class Model(Section):
    """The policy."""

    backbone: str = "qwen2_5_15"
    """A short name (qwen2_5_05, qwen2_5_15, qwen2_5_3, each also with _instruct; tiny), a Hugging Face causal LM's
    directory, or its hub name."""
    adapter: Literal["none", "lora"] = "lora"
    """What is trained: ``none`` = all weights, ``lora`` = a peft LoRA adapter."""
    lora_rank: PositiveInt = 32
    """Rank of the adapter."""
    lora_alpha: PositiveInt = 64
    """Scale of the adapter: its product is multiplied by alpha / rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout in front of the adapter."""
    lora_targets: str | list[str] = "all-linear"
    """Modules that get an adapter: ``all-linear``, or their names."""
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
    """Tokens; a longer prompt is left out of the data (and counted in the log)."""
    max_completion_length: PositiveInt = 512
    """The generation budget in tokens; also Dr. GRPO's loss normaliser."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature. Training samples from the full distribution: no top-p, no top-k."""
    generation_batch_size: NonNegativeInt = 0
    """Completions generated at once by a process; 0 = its whole share of the buffer."""


class Algorithm(Section):
    """The estimator."""

    loss_type: Literal["dr_grpo"] = "dr_grpo"
    """Dr. GRPO: advantages without the group's standard deviation, a constant normaliser."""
    epsilon: PositiveFloat = 0.2
    """Clip range of the importance ratio, [1 - epsilon, 1 + epsilon]."""
    epsilon_high: PositiveFloat | None = None
    """Upper clip range where it differs from ``epsilon``."""


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
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""


class Task(Section):
    """What is asked and what is right."""

    name: str = "gsm8k"
    """A task of ``grpo_train/tasks``: gsm8k, addition."""
    path: str | None = None
    """The task's data: a JSONL file, or a directory with train.jsonl and test.jsonl. Without it gsm8k comes from
    the hub."""
    limit: PositiveInt | None = None
    """Use only the first so many training problems (100 rows to overfit on)."""
    digits: Annotated[int, Field(ge=1, le=6)] = 2
    """addition: digits of each number."""
    correct_reward: float = 2.0
    """Reward of a right answer in the right format; every other completion gets 0."""


class Eval(Section):
    """Evaluation, always in a process of its own."""

    batch_size: PositiveInt = 32
    """Prompts generated at once."""
    max_completion_length: PositiveInt | None = None
    """Generation budget in tokens; default ``rollout.max_completion_length``."""
    temperature: NonNegativeFloat = 0.0
    """0 = greedy."""
    subset_frac: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the held-out split, seeded and nested: a larger share contains the smaller."""
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
    eval: Eval = Field(default_factory=Eval)
    tracking: Tracking = Field(default_factory=Tracking)

    @model_validator(mode="after")
    def _divides(self) -> Config:
        per_pass = self.run.nproc * self.train.microbatch_size
        below = self.rollout.buffer_size // per_pass * per_pass
        if below != self.rollout.buffer_size:
            nearest = [str(size) for size in (below, below + per_pass) if size]
            raise ValueError(
                f"rollout.buffer_size {self.rollout.buffer_size} does not divide by run.nproc {self.run.nproc} x "
                f"train.microbatch_size {self.train.microbatch_size} = {per_pass}: every process must make the same "
                f"number of forward/backward passes (nearest that does: {' or '.join(nearest)})"
            )
        return self

    @property
    def grad_accum_steps(self) -> int:
        """Micro-batches per process and optimizer update."""
        return self.rollout.buffer_size // (self.run.nproc * self.train.microbatch_size)


def load_config(text: str, overrides: list[str] | tuple[str, ...] = (), source: str = "the config") -> Config:
    """Check a YAML text and ``section.key=value`` overrides (values are YAML too).

    Raises ConfigError with one line a problem: source, line, key, what is wrong, the way out.
    """
    try:
        document = yaml.safe_load(text)
        lines = _lines_of(text, source)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark else source
        raise ConfigError(f"{where}: this is no YAML: {getattr(error, 'problem', None) or error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected sections (run:, model:, rollout:, …), found a {type(document).__name__}")
    document = {section: {} if keys is None else keys for section, keys in document.items()}  # all keys commented out
    from_overrides: set[tuple[str, ...]] = set()
    for override in overrides:
        from_overrides.add(_apply(document, override))
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(problem, source, lines, from_overrides) for problem in error.errors())
        ) from error


def with_changes(config: Config, **sections: dict[str, Any]) -> Config:
    """The configuration with some keys changed, checked again. Raises ConfigError."""
    document = config.model_dump()
    for section, changes in sections.items():
        document[section].update(changes)
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(problem, "the arguments", {}, set()) for problem in error.errors())
        ) from None


def read_config_text(path: Path) -> str:
    """The text of a config file. Raises ConfigError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"it is no UTF-8 text ({error.reason} at byte {error.start})"
    raise ConfigError(f"cannot read the config {path}: {reason} (give --cfg a YAML file; see config/ for examples)")


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply(document: dict[str, Any], override: str) -> tuple[str, ...]:
    key, equals, value = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and name):
        raise ConfigError(f"--set {override}: write section.key=value, e.g. run.total_steps=20")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: '{value}' is no YAML value") from error
    if isinstance(parsed, str) and _is_number(parsed):
        parsed = float(parsed)  # YAML reads 1e-4 as a string
    inner = document.setdefault(section, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"--set {override}: '{section}' is no section")
    inner[name] = parsed
    return (section, name)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines_of(text: str, source: str) -> dict[tuple[str, ...], int]:
    """Line number of every key path. Raises ConfigError for a key that stands twice."""
    lines: dict[tuple[str, ...], int] = {}

    def walk(node: yaml.Node | None, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*path, str(key.value))
                if here in lines:
                    raise ConfigError(
                        f"{source}, line {key.start_mark.line + 1}: '{'.'.join(here)}' is there already, "
                        f"in line {lines[here]}: keep one"
                    )
                lines[here] = key.start_mark.line + 1
                walk(value, here)

    walk(yaml.compose(text), ())
    return lines


def _explain(problem: Any, source: str, lines: dict[tuple[str, ...], int], from_overrides: set[tuple[str, ...]]) -> str:
    path = tuple(str(part) for part in problem["loc"])[:2]
    key = ".".join(path)
    if path in from_overrides:
        where = f"--set {key}"
    elif path in lines:
        where = f"{source}, line {lines[path]}"
    else:
        where = source
    if problem["type"] == "extra_forbidden":
        known = _known_keys(path[0]) if len(path) > 1 else list(Config.model_fields)
        everywhere = [f"{s}.{k}" for s in Config.model_fields for k in _known_keys(s)]
        same_name = [full for full in everywhere if full.partition(".")[2] == path[-1]]
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        if len(path) > 1 and near:
            hint = f"did you mean {path[0]}.{near[0]}?"
        elif same_name:
            hint = f"did you mean {same_name[0]}?"
        elif near:
            hint = f"did you mean {near[0]}?"
        else:
            hint = f"known here: {', '.join(known)}"
        return f"{where}: unknown key '{key}'; {hint}"
    if problem["type"] == "value_error":
        return f"{source}: {problem['ctx']['error']}"
    got = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
    return f"{where}: {key}: {problem['msg'][0].lower()}{problem['msg'][1:]}{got}"


def _known_keys(section: str) -> list[str]:
    field = Config.model_fields.get(section)
    model = field.annotation if field else None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return [name for part in get_args(model) for name in getattr(part, "model_fields", ())]
