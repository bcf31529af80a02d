"""A tiny but real model: Qwen2 architecture, ~0.9M parameters, byte-level tokenizer, warm-started on a task.

It runs everything that a large model runs (train, stop, evaluate, resume) within minutes on two CPU cores. The warm
start imitates a careless student of one task, by default addition. The worked examples show the correct method in the
correct format, but with mistakes (in additions, forgotten carries and miscounted digits). The model learns the method
and the mistakes: about half of its sampled answers are correct, which leaves reinforcement learning something to fix.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.config import schema
from grpo_train.run_dir.files import discarding, fsync_path
from grpo_train.tasks import WorkedTask, load_worked_task
from grpo_train.tiny.architectures import Architecture, config_of, random_model
from grpo_train.tiny.tokenizer import make_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2ForCausalLM

ADDITION = schema.TaskConfig(name="addition", digits=2)
"""Default task of the warm start."""
THREADS = 1
"""Fixed, because the order of summation, and with it the last bits of the weights, depends on it. A second thread helps
little at this size and would busy-wait for a core in use."""


@dataclass(frozen=True)
class WarmStart:
    """Settings of the warm start. The defaults are tuned for a demo of a few minutes on two cores."""

    steps: int = 240
    batch_size: int = 64
    learning_rate: float = 3e-3
    """Peak, reached after 30 steps; falls linearly to 0 over the second half."""
    careful_share: float = 0.6
    """Share of the examples, at the start, without mistakes."""


def make_tiny_model(
    out: Path,
    seed: int = 0,
    on_progress: Callable[[float, str], None] = lambda fraction, message: None,
    warm_start: WarmStart = WarmStart(),
    task: schema.TaskConfig = ADDITION,
) -> None:
    """Create, warm-start and save the model and its tokenizer in Hugging Face format. About a minute on two cores.

    The same seed and task give the same files.

    Args:
        out: directory to write; it appears only when complete and replaces an older model.
        on_progress: receives a fraction in [0, 1] and a message.

    Raises:
        FileExistsError: ``out`` holds anything but a model.
        OSError: ``out`` cannot be written.
        TaskError: the task has no worked examples.
    """
    worked_task = load_worked_task(task)
    _check_out(out)
    on_progress(0.0, "creating the tokenizer")
    import torch
    import transformers  # noqa: F401 - seconds of import, before the first progress of the training

    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tokenizer = make_tokenizer()
            model = new_model(tokenizer)
            _train(model, tokenizer, worked_task, seed, warm_start, on_progress)
    finally:
        torch.set_num_threads(threads)
    on_progress(1.0, "saving")
    _save(model, tokenizer, out)


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """The model before its warm start: float32, with random weights from torch's global generator."""
    from transformers import Qwen2ForCausalLM

    return Qwen2ForCausalLM(config_of("qwen2", tokenizer))


def make_random_model(out: Path, architecture: Architecture, seed: int = 0) -> None:
    """Create and save a tiny model of an architecture with random weights, and its tokenizer. Takes no time.

    Raises:
        FileExistsError: ``out`` holds anything but a model.
        OSError: ``out`` cannot be written.
    """
    _check_out(out)
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = make_tokenizer()
        _save(random_model(architecture, tokenizer), tokenizer, out)


def _train(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: WorkedTask,
    seed: int,
    warm_start: WarmStart,
    on_progress: Callable[[float, str], None],
) -> None:
    """Train on the completions of worked examples (next-token loss, AdamW, linear warm-up and decay)."""
    import torch
    from torch.nn.functional import cross_entropy

    tokens, targets = _examples(tokenizer, task, seed, warm_start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=warm_start.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(warm_start.steps):
        rate = min(1.0, (step + 1) / 30, 2 * (warm_start.steps - step) / warm_start.steps)
        for group in optimizer.param_groups:
            group["lr"] = warm_start.learning_rate * rate
        rows = slice(step * warm_start.batch_size, (step + 1) * warm_start.batch_size)
        logits = model(input_ids=tokens[rows, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), targets[rows, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 0 or step == warm_start.steps - 1:
            on_progress((step + 1) / warm_start.steps, f"warm start, step {step + 1}, loss {loss.item():.3f}")
    model.eval()


def _examples(
    tokenizer: PreTrainedTokenizerFast, task: WorkedTask, seed: int, warm_start: WarmStart
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token IDs and targets of all batches, (steps x batch_size, length); targets are -100 outside completions."""
    import torch

    draw = random.Random(f"warm start {seed}")
    size = task.size("train")
    count = warm_start.steps * warm_start.batch_size
    prompts, completions = [], []
    for row in range(count):
        problem = task.problem("train", draw.randrange(size))
        careless = row >= warm_start.careful_share * count
        prompts.append(problem.prompt)
        completions.append(task.example(problem, draw, careless) + str(tokenizer.eos_token))
    prompt_ids = tokenizer(prompts)["input_ids"]
    completion_ids = tokenizer(completions)["input_ids"]
    length = max(len(p) + len(c) for p, c in zip(prompt_ids, completion_ids, strict=True))
    tokens = torch.full((count, length), int(tokenizer.pad_token_id))
    targets = torch.full((count, length), -100)
    for row, (p, c) in enumerate(zip(prompt_ids, completion_ids, strict=True)):
        tokens[row, : len(p) + len(c)] = torch.tensor(p + c)
        targets[row, len(p) : len(p) + len(c)] = torch.tensor(c)
    return tokens, targets


def _check_out(out: Path) -> None:
    """Make the parents of ``out``, or say why it cannot be written."""
    if out.exists() and not _replaceable(out):
        raise FileExistsError(f"'{out}' exists and is not a model directory; choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)


def _replaceable(out: Path) -> bool:
    """Whether ``out`` is an empty directory, or holds a model and nothing else."""
    if not out.is_dir() or out.is_symlink():
        return False
    files = [file.name for file in out.iterdir()]
    return not files or ("config.json" in files and all(file.endswith((".json", ".safetensors")) for file in files))


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write beside ``out`` and rename, so that ``out`` is never incomplete."""
    from transformers.utils import logging as transformers_logging

    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    with discarding(beside):
        beside.chmod(0o755)
        # Training samples from the full distribution and evaluation is greedy: save no other sampling defaults.
        model.generation_config.do_sample = False
        bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()  # the caller shows progress
        try:
            model.save_pretrained(beside)
        finally:
            if bars:
                transformers_logging.enable_progress_bar()
        tokenizer.save_pretrained(beside)
        for file in beside.iterdir():
            fsync_path(file)
        if out.exists():
            shutil.rmtree(out)
        beside.rename(out)
