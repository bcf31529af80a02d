"""GRPO training of one run, in the variants of docs/algorithms.md (default: Dr. GRPO).

    grpo-train train --cfg config/demo.yaml                 # supervised: restarts, evaluation between stages
    python -m grpo_train.train --cfg config/demo.yaml       # this process alone
    torchrun --nproc_per_node=2 -m grpo_train.train --cfg config/demo.yaml --ckpt DIR

The loop is :func:`train`: prompts → rollouts → rewards → advantages → buffer → micro-batches → log-probabilities → loss
→ optimizer step → log → save. The supervisor passes ``--run-dir``; training then resumes from ``step_latest`` if there
is one, runs to ``--until`` (default: the run's total), saves the full state and exits. With ``control/stop`` in the run
directory it saves and exits after the current step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path

import torch

from grpo_train.config.schema import Config
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.policy.tokenizer import TokenTexts
from grpo_train.run_dir import RunDir
from grpo_train.train.buffer import RolloutBuffer, deal_buffer, groups_of, make_buffer
from grpo_train.train.distributed import World
from grpo_train.train.filling import BufferSamples, draw_filtered
from grpo_train.train.gradients import GradientSum
from grpo_train.train.retention import prune_checkpoints
from grpo_train.train.samples import compute_advantages, gather_samples, total_rewards
from grpo_train.train.state import TrainingState
from grpo_train.train.step_log import StageClock, StepLog, announce, rollout_metrics
from grpo_train.train.token_metrics import TokenSums
from grpo_train.train.token_rows import choose_slots, token_rows
from grpo_train.train.update import make_piece, microbatches, piece_loss, score_old_policy


def train(run: RunDir, config: Config, world: World, *, until: int, ckpt: Path | None = None) -> int:
    """Train from the latest checkpoint (or fresh, or from the weights in ``ckpt``) to step ``until``.

    Every rank calls it. Returns the last saved step: ``until``, or an earlier one after a stop.
    """
    state = TrainingState(run, config, world, ckpt)
    announce(run, config, world, state, until)
    log = StepLog(run, config, world, state)
    my_groups = groups_of(world, config)
    texts = TokenTexts(state.policy.tokenizer, state.policy.ends)
    saved = state.step
    for step in range(state.step + 1, until + 1):
        clock = StageClock()
        buffer_index, update_index = divmod(step - 1, config.steps_per_buffer)
        if update_index == 0 or state.buffer is None:
            state.backend.sync()
            clock.lap("sync")
            if config.rollout.filter_groups:
                drawn = draw_filtered(state, buffer_index, my_groups, config, world)
            else:
                prompts = state.draw_prompts(config.rollout.buffer_size)
                mine = state.generate_and_judge(buffer_index, my_groups, [prompts[k] for k in my_groups])
                drawn = BufferSamples(mine, gather_samples(mine, world))
            samples = drawn.samples
            clock.lap("rollout")
            clock.split("rollout", "discarded", drawn.discarded_seconds)
            rewards = total_rewards(samples, config.algorithm)
            advantages = compute_advantages(samples, rewards, config, state.baselines)
            generated = make_buffer(drawn.mine, my_groups, samples, advantages, config)
            state.buffer = deal_buffer(generated, world, config)
            state.buffer.kept = choose_slots(samples, rewards, config)
            state.buffer.metrics = {**rollout_metrics(samples, rewards), **drawn.metrics}
            everything = [*samples, *(discarded.sample for discarded in drawn.discarded)]
            if state.curriculum:
                state.buffer.metrics[f"task/{state.curriculum.label}/level"] = state.curriculum.level
                log.raised(step, state.raise_level(everything))
            state.num_tokens += sum(sample.prompt_length + sample.length for sample in everything)
            log.add_rollouts(step, samples, rewards, advantages, drawn.discarded)
            clock.lap("reward")
            log.note(state.budget.make_room(has_moments=bool(state.optimizer.state)))
            if config.steps_per_buffer > 1:  # otherwise the old policy is the current one
                old = partial(score_old_policy, state.forward, state.buffer, config)
                state.buffer.old_logps = state.score_rows.run(old)
            if state.reference is not None:
                reference = partial(state.reference.score, state.buffer.completions)
                state.buffer.ref_logps = state.score_rows.run(reference)
            clock.lap("score")

        update = update_index % config.algorithm.updates_per_buffer  # index in a pass over the buffer
        is_last_pass = update_index >= config.steps_per_buffer - config.algorithm.updates_per_buffer
        kept = state.buffer.kept_rows(update, config) if is_last_pass else {}
        sums = state.gradient_rows.run(partial(_attempt_gradients, state, state.buffer, update, config, kept))
        squared_norms = state.unscale(state.gradients.all_reduce(world))
        grad_norm = float(torch.nn.utils.clip_grad_norm_(state.policy.trainable(), config.optimizer.max_grad_norm))
        learning_rate = float(state.scheduler.get_last_lr()[0])
        if math.isfinite(grad_norm):  # otherwise the step is skipped, which keeps the weights
            state.scaler.step(state.optimizer)
            state.scheduler.step()
            state.check_weights(step)
        state.scaler.update()
        clock.lap("train")

        logged = token_rows(state.buffer, kept, {row: values.cpu() for row, values in sums.kept.items()}, texts)
        parts = world.gather((sums.collect(), squared_norms, state.gradient_rows.rows, state.budget.own(), logged))
        token_sums, norms, rows_per_pass, costs, tokens = zip(*parts, strict=True)
        state.update_noise_scale([norm for rank in norms for norm in rank], grad_norm)
        log.add_tokens(step, step - update_index, [row for rank in tokens for row in rank])
        log.write(step, token_sums, grad_norm, learning_rate, min(rows_per_pass), clock)
        log.note(state.budget.settle(costs))
        state.saver.check()

        is_stop = bool(world.broadcast(run.stop_requested()))
        if is_stop or step == until or step % config.run.save_every == 0:
            is_final = step == config.run.total_steps
            log.waited(state.save(step, is_final=is_final, then=partial(_saved, run, config, log, step)))
            saved = step
        if is_stop:
            state.saver.wait()
            if world.is_main:
                run.clear_stop()
            log.stopped(step)
            break
    state.saver.wait()
    world.broadcast(None)  # other ranks wait for rank 0's last save
    state.gradients.close()
    log.close()
    return saved


def _saved(run: RunDir, config: Config, log: StepLog, step: int, seconds: float) -> None:
    """Log a checkpoint that is complete, and remove those that it replaces."""
    log.saved(step, seconds)
    keep_last, keep_every = config.run.keep_last, config.run.keep_every
    prune_checkpoints(run, keep_last=keep_last, keep_every=keep_every, only_backed_up=config.backup.every_save)


def _attempt_gradients(
    state: TrainingState, buffer: RolloutBuffer, update: int, config: Config, kept: Container[int], max_rows: int
) -> TokenSums:
    """This rank's gradient of an update, from the start: an earlier attempt may have run out of memory halfway."""
    limits = {"max_rows": max_rows, "max_tokens": state.budget.tokens}

    def work() -> TokenSums:
        state.gradients.start()
        state.budget.start()
        scale = state.scaler.scale
        return accumulate_gradients(
            state.forward, buffer, update, state.gradients, config, **limits, scale=scale, kept=kept
        )

    sums = state.compiling.run(work)
    state.budget.stop(sums.largest)
    return sums


def accumulate_gradients(
    forward: LogprobForward,
    buffer: RolloutBuffer,
    update: int,
    gradients: GradientSum,
    config: Config,
    *,
    max_rows: int = 0,
    max_tokens: int | None = None,
    scale: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
    kept: Container[int] = (),
) -> TokenSums:
    """Add the gradient of this rank's share of a buffer's update to ``gradients``; returns the sums for the log.

    Args:
        max_rows: completions of one pass at most; 0 = a whole micro-batch. Changes no number.
        max_tokens: tokens of one pass at most, likewise; None = ``train.token_budget``, no limit if that is ``auto``.
        scale: multiplies the loss before the backward pass (float16).
        kept: indices of completions whose tokens' values the sums keep.
    """
    sums = TokenSums()
    # A piece is a part of a micro-batch that takes one forward pass.
    budget = config.token_budget if max_tokens is None else max_tokens
    for pieces in microbatches(buffer, update, config, max_rows=max_rows, max_tokens=budget):
        gradients.start_microbatch()
        for rows in pieces:
            tokens = forward([buffer.completions[i] for i in rows], entropy_gradient=config.algorithm.entropy_coef > 0)
            piece = make_piece(buffer, rows, tokens, config)
            loss = piece_loss(tokens, piece, buffer, update, config)
            gradients.backward(scale(loss.loss), is_last_piece=rows is pieces[-1])
            sums.add(loss, tokens, piece, {row: place for place, row in enumerate(rows) if row in kept})
    return sums
