"""One training step, ours and ``trl.GRPOTrainer``'s, on recorded completions."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_train.algorithm import group_advantages
from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rollout import Completion
from grpo_train.tiny.model import new_model
from grpo_train.tiny.tokenizer import make_tokenizer
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.distributed import World
from grpo_train.train.gradients import GradientSum
from grpo_train.train.loop import accumulate_gradients
from tests.support.engine import config_text

GENERATIONS, PROMPT = 8, 12


@dataclass(frozen=True)
class Recording:
    """Completions with rewards, group by group."""

    completions: list[Completion]
    rewards: list[float]

    @property
    def groups(self) -> int:
        return len(self.completions) // GENERATIONS


def record(lengths: Sequence[int], flat_groups: int = 0) -> Recording:
    """Random tokens of the given lengths; ``flat_groups`` evenly spread groups have equal rewards."""
    draw, words = random.Random(0), len(make_tokenizer())
    completions, rewards = [], []
    groups = len(lengths) // GENERATIONS
    for i, length in enumerate(lengths):
        group, sample = divmod(i, GENERATIONS)
        if sample == 0:
            prompt_ids = tuple(draw.choices(range(words), k=PROMPT))
        ids = tuple(draw.choices(range(words), k=length))
        completions.append(Completion(prompt_ids, ids, (-math.log(words),) * length, finished=False))
        flat = flat_groups * group // groups != flat_groups * (group + 1) // groups
        rewards.append(1.0 if flat or sample % 3 == 0 else 0.0)
    return Recording(completions, rewards)


def tiny(**changes: int) -> tuple[Qwen2ForCausalLM, Any]:
    """The tiny model with random weights and config changes, and its tokenizer."""
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    model = new_model(tokenizer)
    if changes:
        model = Qwen2ForCausalLM(Qwen2Config(**{**model.config.to_dict(), **changes}))
    return model, tokenizer


def settings_of(recording: Recording, microbatch: int, **changes: Any) -> Config:
    """Our config; ``microbatch`` in prompt groups."""
    return load_config(
        config_text(
            rollout__buffer_size=recording.groups,
            rollout__num_generations=GENERATIONS,
            rollout__max_completion_length=512,
            optimizer__learning_rate=1e-6,
            optimizer__warmup_steps=0,
            train__microbatch_size=microbatch,
            **changes,
        )
    )


@dataclass
class Step:
    """One optimizer step."""

    seconds: float
    loss: float
    gradient: list[torch.Tensor] = field(default_factory=list)
    """Of each parameter before clipping; first step only."""


class Ours:
    """What ``train()`` sets up before its loop."""

    def __init__(self, model: Any, tokenizer: Any, recording: Recording, config: Config) -> None:
        model.train()
        policy = Policy(model, tokenizer, torch.device("cpu"), "tiny")
        self.config, self.parameters = config, policy.trainable()
        options = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda done: 1.0)
        self.forward = LogprobForward(
            policy, temperature=1.0, packing=config.train.packing, chunked=config.train.chunked_logprobs
        )
        assert self.forward.packed
        assert self.forward.chunked == config.train.chunked_logprobs
        self.gradients = GradientSum(self.parameters)
        self.buffer = RolloutBuffer(
            completions=recording.completions,
            advantages=group_advantages(torch.tensor(recording.rewards), GENERATIONS, "none"),
            counted=torch.ones(len(recording.completions), dtype=torch.bool),
            completions_per_update=[len(recording.completions)],
            tokens_per_update=[float(sum(len(c.ids) for c in recording.completions))],
        )

    def step(self, look: Callable[[Sequence[torch.nn.Parameter]], list[torch.Tensor]] | None = None) -> Step:
        """The calls of ``train()`` in the same order; ``look`` gets the gradient, outside the measured time."""
        start, aside, gradient = time.process_time(), 0.0, []
        self.gradients.start()
        sums = accumulate_gradients(self.forward, self.buffer, 0, self.gradients, self.config)
        self.gradients.all_reduce(World())
        if look is not None:
            paused = time.process_time()
            gradient = look(self.parameters)
            aside = time.process_time() - paused
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.max_grad_norm))
        assert math.isfinite(grad_norm)
        self.optimizer.step()
        self.scheduler.step()
        collected = sums.collect()
        return Step(time.process_time() - start - aside, float(collected.sums[0]), gradient)


def trl_steps(
    model: Any,
    tokenizer: Any,
    recording: Recording,
    config: Config,
    steps: int,
    look: Callable[[Sequence[torch.nn.Parameter]], list[torch.Tensor]],
    before_first: Callable[[], None] = lambda: None,
    between: Callable[[Step], None] = lambda step: None,
) -> None:
    """Run ``GRPOTrainer.train()``; ``between`` is called after each step and ``look`` within the first."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows = [int(p) % recording.groups * GENERATIONS + k % GENERATIONS for k, p in enumerate(prompts)]
        completions = [recording.completions[row] for row in rows]
        return {
            "prompt_ids": [list(c.prompt_ids) for c in completions],
            "completion_ids": [list(c.ids) for c in completions],
            "logprobs": [list(c.logps) for c in completions],
            "recorded": [recording.rewards[row] for row in rows],
        }

    def reward(recorded: list[float], **kwargs: Any) -> list[float | None]:
        return list(recorded)

    class Watched(GRPOTrainer):
        aside = 0.0
        gradient: list[torch.Tensor] | None = None

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            paused = time.process_time()
            batch = super()._generate_and_score_completions(inputs)
            self.aside += time.process_time() - paused
            return batch

        def _clip_grad_norm(self, model: Any) -> Any:
            if self.gradient is None:
                paused = time.process_time()
                self.gradient = look([p for p in model.parameters() if p.requires_grad])
                self.aside += time.process_time() - paused
            return super()._clip_grad_norm(model)

    class Clock(TrainerCallback):
        started = lost = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 0:
                before_first()
            trainer.aside, self.started = 0.0, time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seconds = time.process_time() - self.started - trainer.aside
            total = float(trainer._tr_loss)
            between(Step(seconds, total - self.lost, (trainer.gradient or []) if state.global_step == 1 else []))
            self.lost = total

    with tempfile.TemporaryDirectory() as folder:
        microbatch = config.train.microbatch_size
        trainer = Watched(
            model=model,
            processing_class=tokenizer,
            reward_funcs=reward,
            rollout_func=rollouts,
            train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(steps * recording.groups)]}),
            callbacks=[Clock()],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=microbatch * GENERATIONS,
                gradient_accumulation_steps=recording.groups // microbatch,
                num_generations=GENERATIONS,
                max_completion_length=config.rollout.max_completion_length,
                loss_type="dr_grpo",
                scale_rewards="none",
                optim="adamw_torch_fused",
                learning_rate=config.optimizer.learning_rate,
                lr_scheduler_type="constant",
                max_grad_norm=config.optimizer.max_grad_norm,
                shuffle_dataset=False,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
