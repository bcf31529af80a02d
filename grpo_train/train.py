"""Dr. GRPO training of one run.

    grpo-train train --cfg config/demo.yaml                 # supervised: restarts, evaluation between stages
    python -m grpo_train.train --cfg config/demo.yaml       # this process alone
    torchrun --nproc_per_node=2 -m grpo_train.train --cfg config/demo.yaml --ckpt DIR

The loop, in :func:`train`: prompts → rollouts → rewards → advantages → micro-batches → log-probabilities → loss →
step → log → save. The supervisor starts this module with ``--run-dir``; it goes on from ``step_latest`` where there is
one, trains until ``--until`` (default: the run's total), saves the full state and exits cleanly. ``control/stop`` in
the run directory ends it after the step under way, saved.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_train.algorithm import group_advantages, policy_loss
from grpo_train.checkpoint import (
    check_adapter,
    load_training_state,
    remove_leftovers,
    save_checkpoint,
    seed_everything,
)
from grpo_train.config import Config
from grpo_train.distributed import Group
from grpo_train.metrics import TokenSums, reward_metrics, rollout_row, token_metrics
from grpo_train.policy.loading import load_policy, pick_device
from grpo_train.policy.locate import base_of_checkpoint, check_weights, resolve_backbone, weight_hash
from grpo_train.policy.logprobs import completion_logprobs, pad_batch
from grpo_train.rollout.prompts import PromptSource
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.run_dir import RunDir
from grpo_train.tasks import load_task
from grpo_train.tracking.logs import RunLogs


def train(run: RunDir, config: Config, group: Group, *, until: int, ckpt: Path | None = None) -> int:
    """Train from the latest checkpoint (or fresh, or from the weights in ``ckpt``) to step ``until``.

    Every rank calls it. Returns the step that was reached and saved: ``until``, or an earlier one after a stop.
    """
    seed_everything(config.run.seed, 0)  # alike on every rank: new adapters must start the same
    latest = run.checkpoint("latest", deep=True) if run.checkpoints() else None
    weights = latest.path / "model" if latest else check_weights(ckpt, config.model.adapter) if ckpt else None
    if latest:
        check_adapter(latest, config.model.adapter)
    task = load_task(config.task)
    policy = load_policy(
        config.model,
        run.root,
        pick_device(group.local_rank),
        weights=weights,
        base=base_of_checkpoint(latest.path, run.root) if latest else None,
        gradient_checkpointing=config.train.gradient_checkpointing,
    )
    parameters = policy.trainable()
    optimizer = torch.optim.AdamW(
        parameters,
        lr=config.optimizer.learning_rate,
        betas=(config.optimizer.adam_beta1, config.optimizer.adam_beta2),
        eps=config.optimizer.adam_epsilon,
        weight_decay=config.optimizer.weight_decay,
    )
    warmup = config.optimizer.warmup_steps
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / (warmup + 1)))
    backend = TransformersBackend(policy.model, policy.tokenizer, stop=task.stop)
    source = PromptSource(
        task,
        policy.tokenizer,
        seed=config.run.seed,
        max_prompt_length=config.rollout.max_prompt_length,
        limit=config.task.limit,
    )
    seed_everything(config.run.seed, group.rank)
    info = load_training_state(latest, optimizer, scheduler, group) if latest else {}
    start, num_tokens, save_seconds = latest.step if latest else 0, int(info.get("num_tokens", 0)), 0.0
    if group.is_main:
        remove_leftovers(run)
        _announce(run, config, start, until, len(source.prompts), source.left_out, info, group)
    logs = RunLogs(run, tensorboard=config.tracking.tensorboard, purge_step=start + 1) if group.is_main else None
    base = info.get("base_model") or {
        "name": policy.base,
        "weights_sha256": weight_hash(resolve_backbone(policy.base, run.root)),
    }

    share = config.rollout.buffer_size // group.world_size
    generations, budget = config.rollout.num_generations, config.rollout.max_completion_length
    saved = start
    for step in range(start + 1, until + 1):
        began = time.perf_counter()

        # prompts → rollouts (completions of a prompt stand side by side)
        prompts = source.at(step, config.rollout.buffer_size)[group.rank * share :][:share]
        with policy.autocast():
            completions = backend.generate(
                [prompt.ids for prompt in prompts],
                num_generations=generations,
                max_completion_length=budget,
                temperature=config.rollout.temperature,
                batch_size=config.rollout.generation_batch_size,
            )
        rolled_out = time.perf_counter()

        # rewards → advantages
        texts = policy.tokenizer.batch_decode([c.ids for c in completions], skip_special_tokens=True)
        grades = [
            task.grade(text, prompts[i // generations].problem, truncated=not completions[i].finished)
            for i, text in enumerate(texts)
        ]
        rewards = torch.tensor([grade.reward for grade in grades], dtype=torch.float32)
        advantages = group_advantages(rewards, generations)
        graded = time.perf_counter()

        # micro-batches → log-probabilities → loss → step
        sums = TokenSums()
        optimizer.zero_grad(set_to_none=True)
        chunk = config.train.microbatch_size * generations
        for first in range(0, len(completions), chunk):
            batch = pad_batch(completions[first : first + chunk], policy.tokenizer.pad_token_id, policy.device)
            with policy.autocast():
                logps, entropy = completion_logprobs(policy.model, batch, config.rollout.temperature)
            loss = policy_loss(
                logps,
                logps.detach(),  # strictly on-policy: one update a buffer, so the old policy is this one
                advantages[first : first + chunk].to(policy.device),
                batch.completion_mask,
                epsilon=config.algorithm.epsilon,
                epsilon_high=config.algorithm.epsilon_high,
                max_completion_length=budget,
                num_completions=config.rollout.buffer_size * generations,
            )
            loss.loss.backward()
            sums.add(loss, entropy, logps, batch)
        group.sum_gradients(parameters)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.optimizer.max_grad_norm))
        learning_rate = scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()
        trained = time.perf_counter()

        # log
        rows = [
            rollout_row(
                step, group.rank * share + i // generations, i % generations, prompts[i // generations],
                completions[i], texts[i], grades[i], float(advantages[i]),
            )
            for i in range(len(completions))
        ]  # fmt: skip
        gathered = group.gather((rows, sums, sum(len(c.prompt_ids) + len(c.ids) for c in completions)))
        num_tokens += sum(tokens for _, _, tokens in gathered)
        if logs is not None:
            all_rows = [row for part, _, _ in gathered for row in part]
            token_level, ratios = token_metrics([part for _, part, _ in gathered])
            metrics = {
                "step": step,
                **reward_metrics(all_rows, generations),
                **token_level,
                "grad_norm": grad_norm,
                "learning_rate": learning_rate,
                "num_tokens": num_tokens,
                "epoch": source.epoch(step, config.rollout.buffer_size),
                "memory/peak_gib": _peak_gib(policy.device),
                "time/rollout": rolled_out - began,
                "time/reward": graded - rolled_out,
                "time/train": trained - graded,
                "time/save": save_seconds,
                "time/step": time.perf_counter() - began + save_seconds,
            }
            logs.step(metrics, all_rows, {"step": step, **ratios})
            print(_line(metrics, config.run.total_steps), flush=True)

        # save at boundaries
        stop = bool(group.decide(run.stop_requested()))
        save_seconds = 0.0
        if stop or step == until or step % config.run.save_every == 0:
            before = time.perf_counter()
            facts = _training_info(config, base, num_tokens)
            final = step == config.run.total_steps
            save_checkpoint(run, step, policy, optimizer, scheduler, group, info=facts, final=final)
            save_seconds, saved = time.perf_counter() - before, step
            if group.is_main:
                run.log_event("saved", step=step, checkpoint=f"step_{step}", seconds=round(save_seconds, 3))
                print(f"saved training_state/step_{step} ({save_seconds:.1f} s)", flush=True)
        if stop:
            if group.is_main:
                run.clear_stop()
                run.log_event("stopped", step=step)
                print(f"stopped after step {step}, as asked; the full state is saved", flush=True)
            break
    if logs is not None:
        logs.close()
    return saved


def _announce(
    run: RunDir, config: Config, start: int, until: int, prompts: int, left_out: int, info: dict[str, Any], group: Group
) -> None:
    """Say what starts, and what of a resume cannot be identical."""
    print(
        f"{run.name}: steps {start + 1} to {until} of {config.run.total_steps}, {group.world_size} process(es), "
        f"{config.rollout.buffer_size} prompts x {config.rollout.num_generations} completions a step, "
        f"{config.grad_accum_steps} micro-batch(es) a process; {prompts} training prompts"
        + (f" ({left_out} longer than rollout.max_prompt_length left out)" if left_out else ""),
        flush=True,
    )
    differences = []
    if info and info.get("world_size") != group.world_size:
        differences.append(f"{info.get('world_size')} processes saved it, {group.world_size} go on")
    if info and info.get("threads") != torch.get_num_threads():
        differences.append(f"{info.get('threads')} threads saved it, {torch.get_num_threads()} go on")
    if differences:
        print(f"not bit for bit the run that never stopped: {'; '.join(differences)}", flush=True)
    run.log_event("training", step=start, until=until, prompts=prompts, left_out=left_out, differences=differences)


def _training_info(config: Config, base: dict[str, str], num_tokens: int) -> dict[str, Any]:
    return {
        "seed": config.run.seed,
        "base_model": base,
        "adapter": config.model.adapter,
        "num_tokens": num_tokens,
        "threads": torch.get_num_threads(),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def _peak_gib(device: torch.device) -> float:
    """Peak memory of this process: allocated on the GPU, or resident in RAM."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**30, 3)
    import resource

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)


def _line(metrics: dict[str, Any], total: int) -> str:
    return (
        f"step {metrics['step']}/{total}  reward {metrics['reward']:.3f}  accuracy {metrics['accuracy']:.3f}  "
        f"loss {metrics['loss']:+.4f}  length {metrics['completions/mean_length']:.1f}  "
        f"grad_norm {metrics['grad_norm']:.3f}  {metrics['time/step']:.2f} s"
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from grpo_train.worker import main

    raise SystemExit(main())
