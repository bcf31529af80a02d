"""GRPO training of one run, in the variants of docs/algorithms.md (Dr. GRPO by default).

    grpo-train train --cfg config/demo.yaml                 # supervised: restarts, evaluation between stages
    python -m grpo_train.train --cfg config/demo.yaml       # this process alone
    torchrun --nproc_per_node=2 -m grpo_train.train --cfg config/demo.yaml --ckpt DIR

The loop, in :func:`train`: prompts → rollouts → rewards → advantages → micro-batches → log-probabilities → loss →
step → log → save. The supervisor starts this module with ``--run-dir``; it goes on from ``step_latest`` where there is
one, trains until ``--until`` (default: the run's total), saves the full state and exits cleanly. ``control/stop`` in
the run directory ends it after the step under way, saved.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.tracking.logs import RunLogs
from grpo_train.train.buffer import groups_of, make_buffer
from grpo_train.train.checkpoint import prune_checkpoints
from grpo_train.train.distributed import Group
from grpo_train.train.health import health
from grpo_train.train.metrics import token_metrics
from grpo_train.train.state import TrainingState
from grpo_train.train.update import accumulate_gradients, score_old_policy


def train(run: RunDir, config: Config, group: Group, *, until: int, ckpt: Path | None = None) -> int:
    """Train from the latest checkpoint (or fresh, or from the weights in ``ckpt``) to step ``until``.

    Every rank calls it. Returns the step that was reached and saved: ``until``, or an earlier one after a stop.
    """
    state = TrainingState(run, config, group, ckpt)
    state.announce(until)
    generations, updates = config.rollout.num_generations, config.algorithm.updates_per_buffer
    my_groups = groups_of(group.rank, group.world_size, config.rollout.buffer_size, updates)
    logs = RunLogs(run, tensorboard=config.tracking.tensorboard, purge_step=state.step + 1) if group.is_main else None
    saved, save_seconds = state.step, 0.0
    for step in range(state.step + 1, until + 1):
        clock = _Clock()
        number, place = divmod(step - 1, config.steps_per_buffer)
        rows: list[dict[str, Any]] = []
        if place == 0 or state.buffer is None:
            # prompts → rollouts, judged as they come → rewards → advantages
            asked = state.source.at(number + 1, config.rollout.buffer_size)
            with state.policy.autocast():
                samples = state.collector.collect(number, my_groups, [asked[k] for k in my_groups])
            clock.lap("rollout")
            state.buffer, rows, tokens = make_buffer(step, my_groups, samples, config, group, state.baselines)
            state.num_tokens += tokens
            clock.lap("reward")
            if config.steps_per_buffer > 1:
                state.buffer.old_logps = score_old_policy(state.forward, state.buffer, config)
            if state.reference is not None:
                state.buffer.ref_logps = state.reference.score(state.buffer.completions, config.train.tf_micro_batch)
            clock.lap("score")

        # micro-batches → log-probabilities → loss → step
        state.gradients.start()
        sums = accumulate_gradients(state.forward, state.buffer, place % updates, state.gradients, config)
        squared_norms = state.gradients.finish(group)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(state.policy.trainable(), config.optimizer.max_grad_norm))
        learning_rate = state.scheduler.get_last_lr()[0]
        if math.isfinite(grad_norm):  # else the weights would be lost
            state.optimizer.step()
            state.scheduler.step()
            state.check_weights(step)
        clock.lap("train")

        # log
        gathered = group.gather((sums.collect(), squared_norms))
        if state.noise_scale is not None:
            norms = [norm for _, part in gathered for norm in part]
            # A micro-batch's gradient enters the sum with its share of the step: times their number it is a mean.
            groups = config.train.microbatch_size
            state.noise_scale.update([norm * len(norms) ** 2 for norm in norms], grad_norm**2, groups)
        if logs is not None:
            token_level, ratios = token_metrics([part for part, _ in gathered], config.algorithm.rollout_correction_cap)
            metrics: dict[str, Any] = {
                "step": step,
                **state.buffer.metrics,
                **token_level,
                "grad_norm": grad_norm,
                "learning_rate": learning_rate,
                **(state.noise_scale.metrics(generations) if state.noise_scale else {}),
                "num_tokens": state.num_tokens,
                "epoch": state.source.epoch(number + 1, config.rollout.buffer_size),
                "memory/peak_gib": _peak_gib(state.policy.device),
                **clock.laps,
                "time/save": save_seconds,
                "time/step": clock.total() + save_seconds,
            }
            metrics["health"] = health(metrics, config, state.noise_scale)
            logs.step(metrics, rows, {"step": step, **ratios})
            print(_line(metrics, config.run.total_steps), flush=True)

        # save at boundaries
        stop = bool(group.decide(run.stop_requested()))
        save_seconds = 0.0
        if stop or step == until or step % config.run.save_every == 0:
            before = time.perf_counter()
            state.save(step, final=step == config.run.total_steps)
            save_seconds, saved = time.perf_counter() - before, step
            if group.is_main:
                run.log_event("saved", step=step, checkpoint=f"step_{step}", seconds=round(save_seconds, 3))
                print(f"saved training_state/step_{step} ({save_seconds:.1f} s)", flush=True)
                prune_checkpoints(run, keep_last=config.run.keep_last, keep_every=config.run.keep_every)
        if stop:
            if group.is_main:
                run.clear_stop()
                run.log_event("stopped", step=step)
                print(f"stopped after step {step}, as asked; the full state is saved", flush=True)
            break
    state.gradients.close()
    if logs is not None:
        logs.close()
    return saved


class _Clock:
    """Seconds of the stages of a step."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self.laps = {f"time/{stage}": 0.0 for stage in ("rollout", "reward", "score", "train")}

    def lap(self, stage: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a stage is over when its work is
        now = time.perf_counter()
        self.laps[f"time/{stage}"], self._last = now - self._last, now

    def total(self) -> float:
        return time.perf_counter() - self._began


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
