"""``model`` and ``rollout``: what is trained, and what generates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo_train.config.sections.base import NameOrFunction, NonNegativeInt, PositiveFloat, PositiveInt, Section


class Model(Section):
    """The model to train."""

    backbone: str = "qwen2_5_15"
    """Base model: a short name (tiny, qwen2_5_05, qwen2_5_15, qwen2_5_3; all but tiny also with _instruct), a directory
    with a Hugging Face causal LM, or a hub ID, optionally OWNER/NAME@COMMIT. Hub models are pinned to the commit that
    the run started with. auto = the largest of qwen2_5_05, _15 and _3 that is estimated to fit in the GPU's memory."""
    adapter: Literal["none", "lora"] = "lora"
    """What is trained: ``none`` = all weights, ``lora`` = a peft LoRA adapter."""
    lora_rank: PositiveInt = 32
    """Rank of the adapter."""
    lora_alpha: PositiveInt = 64
    """Scale of the adapter: its output is multiplied by lora_alpha / lora_rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapter; the model's own dropout is off. Requires one update per buffer: otherwise dropout
    noise would trigger clipping."""
    lora_targets: str | list[str] = "all-linear"
    """Modules that get an adapter: ``all-linear``, or a list of names."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device: ``auto`` = the GPUs, or the CPU on a machine without NVIDIA GPUs. GPUs that torch cannot use are an
    error."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of weights and arithmetic: ``auto`` = bfloat16 on a GPU of compute capability 8 or newer, float16 on an
    older one, float32 on a CPU. Trained weights are always kept in float32; float16 scales the loss."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers. A model without sdpa gets eager, with a message."""


class Rollout(Section):
    """Generation of completions for training."""

    backend: Annotated[str, NameOrFunction(("native", "transformers", "vllm"))] = "native"
    """Generation backend. ``native`` draws from a copy of the weights in the compute type, adapter merged in, with
    slots for keys and values. ``transformers`` generates with the trained model itself; models that native cannot run
    (sliding windows, states, no sdpa) use it, too, with a message. ``vllm`` draws from a vLLM server, which runs in an
    environment of its own (docs/vllm.md). Or your own as ``file.py:function`` (docs/own-code.md)."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """native: share of the free memory, at the start of a rollout, for keys and values. Completions that have no room
    wait for one that ends."""
    cuda_graphs: bool = True
    """native: launch the kernels of a decoding step together, as a CUDA graph, after a trial. ``false`` launches each
    by itself, which is slower, for debugging. Questions, evaluations and opponents do so only where it saves time."""
    compile: Literal["auto", "on", "off"] = "auto"
    """native: compile the layers of decoding steps with torch.compile, after a trial. ``auto`` = on a GPU; for
    questions, evaluations and opponents only where it saves time. The first compilation takes a minute; torch keeps the
    result."""
    vllm_python: str = ""
    """vllm: interpreter of an environment with vLLM; "" = the one that ``make setup-vllm`` makes in a checkout. Each
    process starts a server on its GPU, on a socket that only this user can reach, and ends it."""
    vllm_urls: list[str] = Field(default_factory=list)
    """vllm: servers that are running already, dealt to the processes in turns. Requires vllm_shared_dir."""
    vllm_shared_dir: str = ""
    """vllm_urls: directory that this machine and the servers see, for the weights."""
    vllm_gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.3
    """vllm: share of a GPU's memory that a server takes, weights included, for as long as the run lasts."""
    vllm_max_model_length: NonNegativeInt = 0
    """vllm: longest prompt with completion, in tokens; 0 = what the model allows and memory has room for."""
    buffer_size: PositiveInt = 32
    """Prompts per rollout buffer, over all processes."""
    num_generations: Annotated[int, Field(ge=2)] = 8
    """Completions per prompt. They form a group, whose mean reward is the baseline."""
    filter_groups: bool = False
    """Dynamic sampling (DAPO): replace groups whose rewards are all equal, so that they carry no signal, by further
    prompts until the buffer is full. Discarded completions are in rollouts.jsonl, their tokens and seconds in the
    metrics."""
    max_rounds: PositiveInt = 10
    """filter_groups: maximum rounds of generation per buffer, the first included. After the last, groups without spread
    fill the rest."""
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
    buffer. When memory runs out, transformers halves it, with a message."""
