"""The same work by other libraries, in turns with ours: transformers' ``generate`` and ``trl.GRPOTrainer``.

    python tests/bench/against.py [--model NAME] [--set section.key=value …] [--repeats N] [--json]

The model, config and defaults are those of ``grpo-train bench``, on any device. ``generate`` is called as in TRL, with
its dynamic cache and several completions of each prompt; a ratio is of neighboring turns, in seconds per token.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from grpo_train.bench.measure import REPEATS, Trainer, reward_of
from grpo_train.bench.subject import Subject, make_subject
from grpo_train.cli.bench import LENGTH, ROWS, bench_config
from grpo_train.config.schema import Config
from grpo_train.platforms.choices import resolve_auto
from grpo_train.platforms.facts import read_machine
from grpo_train.policy.flops import now, timed
from grpo_train.policy.loading import compute_type, device_name, lora_config, pick_device
from grpo_train.policy.logprobs import eval_mode
from grpo_train.policy.memory import PeakMemory, is_out_of_memory, release_memory
from grpo_train.run_dir import resolve_root

CACHE = "dynamic"
"""The default of ``generate``. With a static one, transformers compiles the model for each number of rows, which takes
minutes on a GPU."""


@dataclass(frozen=True)
class Turn:
    """The same work by us and by another library, one after the other."""

    ours: float
    """Seconds per token."""
    theirs: float
    ours_above_bytes: int | None = None
    """Peak memory above what was in use before; None on a CPU."""
    theirs_above_bytes: int | None = None


def against_generate(trainer: Trainer, prompts: list[list[int]], length: int, rounds: int) -> dict[str, Any]:
    """Generation by ``generate``, called as in TRL, with its dynamic cache.

    Returns the cache and :func:`summary`; ``{"problem"}`` where it fails, as for lack of memory.
    """
    device = trainer.policy.device
    try:
        _generate(trainer, prompts, length)
        turns = [_turn(trainer, prompts, length, device) for _ in range(rounds)]
    except (RuntimeError, MemoryError) as error:
        problem = f"{CACHE} cache: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}"
        release_memory()
        return {"problem": problem}
    return {"cache": CACHE, **summary(turns)}


def _turn(trainer: Trainer, prompts: list[list[int]], length: int, device: torch.device) -> Turn:
    found, ours = timed(device, partial(trainer.rollout, prompts, length))
    tokens, theirs = timed(device, partial(_generate, trainer, prompts, length))
    return Turn(ours / sum(len(completion.ids) for completion in found), theirs / tokens)


def _generate(trainer: Trainer, prompts: list[list[int]], length: int) -> int:
    """Returns the number of tokens, up to each row's end."""
    policy, tokenizer = trainer.policy, trainer.policy.tokenizer
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(policy.device)
    with torch.no_grad(), eval_mode(policy.model), policy.autocast():
        ids = policy.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=True,
            temperature=trainer.config.rollout.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=length,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            cache_implementation=CACHE,
        )
    new = ids[:, batch["input_ids"].shape[1] :]
    ended = (new == tokenizer.eos_token_id).int()
    return int((ended.cumsum(1) - ended == 0).sum())


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """How many times faster ours is, with the range over the turns, and both sides' tokens per second."""
    ratios = sorted(turn.theirs / turn.ours for turn in turns)
    return {
        "ratio": median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "ours_tokens_per_s": 1 / median(turn.ours for turn in turns),
        "theirs_tokens_per_s": 1 / median(turn.theirs for turn in turns),
    }


def against_trl(subject: Subject, trainer: Trainer, prompts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Whole steps of ``trl.GRPOTrainer`` in turns with ours: same weights, prompts, rewards, lengths, micro-batches,
    checkpointing and compute type; TRL generates with ``generate``.

    Returns :func:`summary` over completion tokens, and both sides' peak memory above weights and optimizer;
    ``{"problem"}`` where memory runs out.
    """
    turns: list[Turn] = []

    def turn(seconds: float, tokens: int, above: int | None) -> None:
        mine = trainer.step()
        turns.append(Turn(mine.seconds / mine.completion_tokens, seconds / tokens, mine.above_bytes, above))

    try:
        trainer.step()
        _train_with_trl(subject, trainer.policy.device, prompts, rounds, turn)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        release_memory()
    if not turns:
        return {"problem": "out of memory with both trainers loaded"}
    return {
        **summary(turns),
        "ours_above_bytes": max((turn.ours_above_bytes for turn in turns if turn.ours_above_bytes), default=None),
        "theirs_above_bytes": max((turn.theirs_above_bytes for turn in turns if turn.theirs_above_bytes), default=None),
    }


def _train_with_trl(
    subject: Subject,
    device: torch.device,
    prompts: Sequence[str],
    rounds: int,
    turn: Callable[[float, int, int | None], None],
) -> None:
    """``rounds`` steps after a warm-up; ``turn`` gets each one's seconds, completion tokens and peak memory above what
    was in use before (None on a CPU)."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config, peak = subject.config, PeakMemory(device)
    generations = config.rollout.num_generations
    tokens = 0

    def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float | None]:
        nonlocal tokens
        tokens = sum(map(len, completion_ids))
        return [reward_of(row, generations) for row in range(len(completion_ids))]

    class Turns(TrainerCallback):
        started = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            peak.reset()
            self.started = now(device)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seconds = now(device) - self.started
            if state.global_step > 1:
                turn(seconds, tokens, peak.above())

    dtype = compute_type(config.model, device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=subject.model(device),
            processing_class=subject.tokenizer,
            peft_config=lora_config(config.model) if config.model.adapter == "lora" else None,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": [*prompts] * (rounds + 1)}),
            callbacks=[Turns()],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=rounds + 1,
                per_device_train_batch_size=config.microbatch_size * generations,
                gradient_accumulation_steps=len(prompts) // config.microbatch_size,
                num_generations=generations,
                max_completion_length=config.rollout.max_completion_length,
                temperature=config.rollout.temperature,
                loss_type="dr_grpo",
                scale_rewards="none",
                beta=0.0,
                optim="adamw_torch_fused",
                learning_rate=config.optimizer.learning_rate,
                lr_scheduler_type="constant",
                max_grad_norm=config.optimizer.max_grad_norm,
                shuffle_dataset=False,
                use_cpu=device.type == "cpu",
                bf16=dtype == torch.bfloat16,
                fp16=dtype == torch.float16,
                gradient_checkpointing=config.train.gradient_checkpointing,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def compare(config: Config, repeats: int = REPEATS) -> dict[str, dict[str, Any]]:
    """What :func:`against_generate` says for each number of rows, and :func:`against_trl`."""
    subject, rollout = make_subject(config), config.rollout
    step_prompts = subject.prompts(rollout.buffer_size)
    trainer = Trainer(subject.policy(pick_device(config.model.device)), config, step_prompts)
    completions = rollout.buffer_size * rollout.num_generations
    found: dict[str, dict[str, Any]] = {}
    for count in sorted({count for count in ROWS if count < completions} | {completions}):
        # Rollouts have several completions of each prompt, which ours reads once.
        prompts = [list(ids) for ids in subject.tokenizer(subject.prompts(count, seed=1))["input_ids"]]
        groups = prompts[: max(1, count // rollout.num_generations)]
        repeated = [prompt for prompt in groups for _ in range(count // len(groups))]
        length = min(LENGTH, rollout.max_completion_length)
        found[f"generate, {len(repeated)} rows"] = against_generate(trainer, repeated, length, repeats)
    found["trl"] = against_trl(subject, trainer, step_prompts, repeats)
    trainer.close()
    return found


def line(name: str, each: dict[str, Any]) -> str:
    if "problem" in each:
        return f"{name}: not measured: {each['problem']}"
    found = (
        f"{name}: ours {each['ours_tokens_per_s']:,.0f} tokens/s, theirs {each['theirs_tokens_per_s']:,.0f}: "
        f"{each['ratio']:.2f}x ({each['lowest']:.2f} to {each['highest']:.2f})"
    )
    if each.get("theirs_above_bytes"):
        ours, theirs = (each[side] / 2**30 for side in ("ours_above_bytes", "theirs_above_bytes"))
        found += f"; peak memory above weights and optimizer {ours:.2f} GiB, theirs {theirs:.2f}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="auto")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, caused by peft and TRL
    machine = read_machine()
    config, _ = resolve_auto(bench_config(options.model, options.set, machine), machine, resolve_root(None))
    found = compare(config, options.repeats)
    if options.json:
        print(json.dumps(found))
        return
    print(device_name(pick_device(config.model.device)), config.model.backbone, config.model.adapter)
    for name, each in found.items():
        print(line(name, each))


if __name__ == "__main__":
    main()
