"""Loading a policy from a backbone, an adapter or a checkpoint, and saving it."""

from __future__ import annotations

import copy
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from logging import LogRecord
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from grpo_train.config.schema import Model
from grpo_train.policy.device import check_device
from grpo_train.policy.locate import (
    PolicyError,
    adapter_of,
    check_base,
    hub_commit,
    hub_id,
    recorded_base,
    resolve_backbone,
)
from grpo_train.policy.tokenizer import check_vocabulary, eos_ids, text_of
from grpo_train.run_dir.signs import downloading
from grpo_train.tasks.shared.hub import hub_answers

NOT_TEXT = re.compile(r"(^|\.)((vision|visual|image|audio|speech|multi_?modal|mm|mtp|talker)[a-z0-9_]*)\.")
"""Tensors of what a text model does not have: towers, their projectors, and layers that predict several tokens."""
CONSTANTS = re.compile(r"(attn|attention)\.(masked_)?bias$|inv_freq$|position_ids$")
"""Masks and positions that old checkpoints hold and models compute."""
NAMED = 3
"""Tensors that a message names."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Policy:
    """A model with its tokenizer, device and arithmetic."""

    model: Any
    tokenizer: Any
    device: torch.device
    base: str
    """Source of the weights under the adapter (or of the first full weights): a hub id at its commit, a path relative
    to the root, or an absolute path outside it."""
    autocast_dtype: torch.dtype | None = None
    """Compute type of float32 master weights, where it is smaller."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Context manager for forward passes."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)

    @property
    def device_name(self) -> str:
        """The GPU's model, or ``CPU``."""
        return device_name(self.device)

    def trainable(self) -> list[torch.nn.Parameter]:
        """Trained parameters, in the model's order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @cached_property
    def ends(self) -> list[int]:
        """Token ids that end a completion."""
        return eos_ids(self.model.generation_config, self.tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """Text of a completion, see :func:`~grpo_train.policy.tokenizer.text_of`."""
        return text_of(ids, self.tokenizer, self.ends)

    def save(self, folder: Path) -> None:
        """Write the adapter or the full weights with the tokenizer, in peft's or Hugging Face's format."""
        folder.mkdir(parents=True, exist_ok=True)
        self._name_base()
        self.model.save_pretrained(folder, safe_serialization=True, **self._adapter_options)
        self.tokenizer.save_pretrained(folder)

    def weights(self) -> dict[str, torch.Tensor] | None:
        """The tensors of the weights' file by name, as :meth:`save` writes them; not copied.

        None for a model whose weights transformers stores in another layout than it computes with.
        """
        if self._adapter_options:
            from peft import get_peft_model_state_dict

            return dict(get_peft_model_state_dict(self.model, **self._adapter_options))
        if getattr(self.model, "_weight_conversions", None):
            return None
        first: dict[int, str] = {}  # a tied weight is saved once
        state = self.model.state_dict()
        return {name: value for name, value in state.items() if first.setdefault(value.data_ptr(), name) == name}

    @property
    def weights_name(self) -> str:
        """Name of the weights' file."""
        return "adapter_model.safetensors" if self._adapter_options else "model.safetensors"

    @cached_property
    def description(self) -> dict[str, bytes]:
        """The files beside the weights by name, as :meth:`save` writes them: configuration and tokenizer."""
        with tempfile.TemporaryDirectory() as folder:
            if self._adapter_options:
                self._name_base()
                config = copy.copy(self.model.peft_config["default"])
                config.inference_mode = True
                config.save_pretrained(folder)
            else:
                config = copy.copy(self.model.config)
                config.dtype = str(self.model.dtype).removeprefix("torch.")
                config.architectures = [type(self.model).__name__]
                config.save_pretrained(folder)
                if self.model.can_generate():
                    self.model.generation_config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}

    @property
    def _adapter_options(self) -> dict[str, Any]:
        """How peft saves an adapter. The default looks up the base's vocabulary, on the hub for a hub model; the
        vocabulary never changes here."""
        return {"save_embedding_layers": False} if hasattr(self.model, "peft_config") else {}

    def _name_base(self) -> None:
        """Record the base in the adapter, not by an absolute path, so that a moved root still works."""
        for adapter in getattr(self.model, "peft_config", {}).values():
            adapter.base_model_name_or_path, adapter.revision = hub_id(self.base)


def pick_device(setting: str, local_rank: int = 0) -> torch.device:
    """This process's device: the GPU of its local rank, or the CPU.

    Args:
        setting: ``model.device``.

    Raises PolicyError where this machine has GPUs that torch cannot use, or too few, unless ``setting`` is ``cpu``.
    """
    if setting == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        check_device(setting, nproc=1)
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        check_device(setting, nproc=local_rank + 1)
    # On Hopper and Blackwell, PyTorch may prefer cuDNN attention, which spends hundreds of milliseconds on a plan for
    # each new shape. Packed batches and growing completions bring new shapes all the time.
    # github.com/pytorch/pytorch/pull/155958, github.com/modelscope/FunASR/issues/3704
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", local_rank)


def use_repeating_kernels() -> None:
    """Let only kernels run that repeat bit for bit (``run.deterministic``). Call it before the first use of the GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # docs.pytorch.org/docs/stable/notes/randomness.html
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # faster
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward pass adds in any order


def automatic_dtype(device: torch.device) -> torch.dtype:
    """The type of ``model.dtype: auto``: bfloat16 on GPUs of compute capability 8 and newer, float16 on older ones,
    float32 on a CPU."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def device_name(device: torch.device) -> str:
    """The GPU's model, or ``CPU``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def load_policy(
    settings: Model,
    root: Path,
    device: torch.device,
    *,
    weights: Path | None = None,
    base: str | None = None,
    trainable: bool = True,
    gradient_checkpointing: bool = False,
) -> Policy:
    """Load the policy on ``device``.

    Args:
        settings: the ``model`` section.
        weights: a checkpoint's model directory (adapter or full weights); default: fresh from the backbone.
        base: the base model of an adapter (``--base``, or the one recorded by a checkpoint); default: the backbone.
            Full weights need neither: model, config and tokenizer come from their directory.
        trainable: False loads for evaluation, in the smallest dtype and without gradients.

    Raises PolicyError when a model is missing, or an adapter and the settings disagree.
    """
    kind = adapter_of(weights) if weights else None
    if kind == "none":
        assert weights is not None
        source = str(weights)
    else:
        source = _pinned(resolve_backbone(base or settings.backbone, root))
    wants_master = trainable and settings.adapter == "none"
    dtype = compute_type(settings, device)
    model, tokenizer = _load(source, torch.float32 if wants_master else dtype, settings.attention)
    if kind == "lora":
        from peft import PeftModel

        assert weights is not None
        check_base(weights, source, root)
        renamed = getattr(model, "_checkpoint_conversion_mapping", {})
        try:
            model = PeftModel.from_pretrained(model, str(weights), is_trainable=trainable)
            # Again, as only this returns which tensors were loaded.
            found = model.load_adapter(
                str(weights), "default", is_trainable=trainable, torch_device="cpu", key_mapping=renamed
            )
        except Exception as error:  # libraries raise many types for files that they cannot read
            raise PolicyError(f"cannot load the adapter {weights} on {source}: {_first_line(error)}") from error
        own = dict(model.named_parameters(remove_duplicate=False))
        filled = {id(own[name]) for name in own.keys() - found.missing_keys}  # shared parameters under any name
        missing = {name for name in own.keys() & found.missing_keys if id(own[name]) not in filled}
        _check_all_used(f"the adapter {weights}", missing, found.unexpected_keys)
    elif settings.adapter == "lora" and trainable:
        model = add_adapter(model, settings)
    if not trainable:
        model.requires_grad_(False)
    model.train(trainable)  # dropout and gradient checkpointing need training mode
    # Trained weights are float32, adapters included (peft); without autocast an adapter would compute in float32.
    autocast = dtype if trainable and dtype.itemsize == 2 else None
    base = recorded_base(source, root)
    return make_policy(model, tokenizer, device, base, autocast, gradient_checkpointing=gradient_checkpointing)


def make_policy(
    model: Any,
    tokenizer: Any,
    device: torch.device,
    base: str,
    autocast: torch.dtype | None,
    *,
    gradient_checkpointing: bool = False,
) -> Policy:
    """A policy of a loaded model, with or without an adapter, on ``device``; see :class:`Policy`."""
    leave_casts_to_autocast(model)
    if gradient_checkpointing:
        recompute_activations(model)
    return Policy(model.to(device), tokenizer, device, base, autocast)


def recompute_activations(model: Any) -> None:
    """Let the backward pass recompute activations (``train.gradient_checkpointing``)."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()


def compute_type(settings: Model, device: torch.device) -> torch.dtype:
    """The type that ``model.dtype`` names."""
    return _DTYPES.get(settings.dtype) or automatic_dtype(device)


def lora_config(settings: Model) -> Any:
    """peft's config of the ``model`` section's adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=settings.lora_targets,
        task_type="CAUSAL_LM",
    )


def add_adapter(model: Any, settings: Model) -> Any:
    """The model with a fresh adapter. Raises PolicyError for targets that it does not have."""
    from peft import get_peft_model

    try:
        return get_peft_model(model, lora_config(settings))
    except ValueError as error:
        raise PolicyError(f"model.lora_targets {settings.lora_targets}: {str(error).splitlines()[0]}") from error


def leave_casts_to_autocast(model: Any) -> None:
    """Let adapters leave their input as it is under autocast, which casts it for each product anyway.

    peft casts it to the float32 of the adapter's weights first: the same values, and 6 kernels more a layer. With
    dropout, which peft then computes in float32, nothing is changed.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        dropouts = getattr(module, "lora_dropout", None)
        has_none = dropouts is not None and all(isinstance(each, torch.nn.Identity) for each in dropouts.values())
        if isinstance(module, BaseTunerLayer) and has_none:
            module.__dict__["_cast_input_dtype"] = _cast_without_autocast


def _cast_without_autocast(x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """In place of ``BaseTunerLayer._cast_input_dtype``. Recomputed activations see the same state of autocast."""
    if x is None or x.dtype == dtype or torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(dtype)


def _pinned(resolved: str) -> str:
    """A hub id pinned to its commit, or a directory unchanged."""
    if Path(resolved).is_dir():
        return resolved
    name, commit = hub_id(resolved)
    commit = commit or hub_commit(name)
    found = f"{name}@{commit}" if commit else name
    if os.environ.get("RANK", "0") == "0":
        print(f"loading {found} (downloaded first if it is not in the cache)", flush=True)
    return found


def _from_hub(load: Callable[..., tuple[Any, Any]], name: str, commit: str) -> tuple[Any, Any]:
    """Load from the hub; where it is down or no longer has the commit, from this machine's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    # The hub client retries for 50 s before it uses the cache.
    cache_first = not hub_answers(name, commit=commit)
    hub_error: Exception | None = None
    for from_cache in (cache_first, not cache_first):
        try:
            with downloading(Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"):
                return load(name, revision=commit, local_files_only=from_cache)
        except (OSError, ValueError) as error:
            hub_error = hub_error if from_cache else error
    assert hub_error is not None
    raise hub_error


def _load(source: str, dtype: torch.dtype, attention: str) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME, logging

    logging.disable_progress_bar()  # the console log is a file
    logging.get_logger("transformers.modeling_utils").addFilter(_is_not_a_table)  # type: ignore[arg-type]
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # caused by peft
    warnings.filterwarnings("ignore", message="Found missing adapter keys")  # an error here

    infos: list[Any] = []
    reading: list[str] = []

    def load(name: str, **options: Any) -> tuple[Any, Any]:
        reading.append("config.json")
        config = AutoConfig.from_pretrained(name, **options)
        reading.append("weights")
        _switch_off_dropout(config)
        # adapter_kwargs: an adapter is looked for on the hub even with local_files_only.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name,
            config=config,
            dtype=dtype,
            attn_implementation=None if attention == "sdpa" else attention,  # None: sdpa where the model has it
            adapter_kwargs=dict(options),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
            **options,
        )
        model, found = loaded
        infos.append(found)
        if os.path.lexists(Path(name, GENERATION_CONFIG_NAME)):  # the library passes over one that it cannot read
            reading.append(GENERATION_CONFIG_NAME)
            GenerationConfig.from_pretrained(name)
        reading.append("tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        check_vocabulary(tokenizer)
        return model, tokenizer

    name, commit = (source, None) if Path(source).is_dir() else hub_id(source)
    try:
        model, tokenizer = _from_hub(load, name, commit) if commit else load(name)
    except Exception as error:  # libraries raise many types for files that they cannot read
        reason = _first_line(error)
        hint = (
            "set model.attention: sdpa"
            if attention != "sdpa" and "attention" in reason.lower()
            else "a directory needs config.json, weights and a tokenizer; a hub model needs the network or its cache"
        )
        raise PolicyError(f"cannot load the model '{source}': {reading[-1]}: {reason} ({hint})") from error
    _check_model(model, source, infos[-1])
    if (used := model.config._attn_implementation) != attention and os.environ.get("RANK", "0") == "0":
        print(f"model.attention: {used}, as {type(model).__name__} has no {attention}", flush=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False  # Llama's default; completions are graded as generated
    return model, tokenizer


def _switch_off_dropout(config: Any) -> None:
    """Set the model's own dropout (and the noise of its routers) to 0, in all parts of its configuration.

    The sampler has none: with it, the trained policy would differ from the one that sampled.
    """
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            _switch_off_dropout(value)
        elif isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)


def _is_not_a_table(record: LogRecord) -> bool:
    """False for transformers' table of tensors that are missing or not used: :func:`_check_model` names them."""
    return "LOAD REPORT" not in record.getMessage()


def _check_model(model: Any, source: str, found: Mapping[str, Any]) -> None:
    """Raise PolicyError unless the tensors of the files are those of the model; say which parts were left out.

    Args:
        found: transformers' loading info.
    """
    resized = {f"{name} {list(saved)}, not {list(own)}" for name, saved, own in found["mismatched_keys"]}
    names = set(found["unexpected_keys"])
    _check_all_used(
        f"the model '{source}'",
        found["missing_keys"] | resized,
        {name for name in names if not NOT_TEXT.search(name) and not CONSTANTS.search(name)},
    )
    if not any(NOT_TEXT.search(name) for name, _ in model.named_parameters()):
        for file in Path(source).glob("*.safetensors"):  # transformers does not report what a model class always drops
            with safe_open(file, "pt") as opened:
                names.update(opened.keys())
        parts = sorted({part[0].strip(".") for name in names if (part := NOT_TEXT.search(name))})
        if parts and os.environ.get("RANK", "0") == "0":
            print(f"not loaded, as {type(model).__name__} is a text model: {', '.join(parts)}", flush=True)


def _check_all_used(what: str, missing: Collection[str], unused: Collection[str]) -> None:
    problems = [
        f"{kind} tensors ({len(names)}): {', '.join(sorted(names)[:NAMED])}{', …' if len(names) > NAMED else ''}"
        for kind, names in (("missing", missing), ("unknown", unused))
        if names
    ]
    if problems:
        raise PolicyError(
            f"{what} cannot be used: {'; '.join(problems)}; save it again from the model itself, without a wrapper "
            "such as torch.compile's (_orig_mod.) or a vision model's (language_model.)"
        )


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return text if " " in text else repr(error)
