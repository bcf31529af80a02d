"""The log of a run's steps: JSONL, TensorBoard, console and events. Rank 0 writes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.signs import sign_of_life
from grpo_train.tracking.logs import StepLogs
from grpo_train.train.curriculum import Raised
from grpo_train.train.distributed import World
from grpo_train.train.health import health
from grpo_train.train.log_rows import console_line, discarded_rows, rollout_rows
from grpo_train.train.samples import Discarded, ScoredSample
from grpo_train.train.speed import StepSpeed
from grpo_train.train.state import TrainingState
from grpo_train.train.token_metrics import TokenSums, token_metrics
from grpo_train.train.token_rows import TokenRow, token_lines


class StageClock:
    """Seconds of a step's stages."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps = {f"time/{stage}": 0.0 for stage in ("rollout", "reward", "score", "train")}

    def lap(self, stage: str) -> None:
        """End a stage."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # include the stage's pending kernels
        now = time.perf_counter()
        self.laps[f"time/{stage}"], self._last = now - self._last, now

    def split(self, stage: str, part: str, seconds: float) -> None:
        """Report ``seconds`` of a stage under the name of a part of it."""
        if seconds:
            self.laps[f"time/{stage}"] -= seconds
            self.laps[f"time/{part}"] = seconds

    def total(self) -> float:
        return time.perf_counter() - self._start


class StepLog:
    """Writes on rank 0, does nothing on other ranks."""

    def __init__(self, run: RunDir, config: Config, world: World, state: TrainingState) -> None:
        self._run, self._config, self._world, self._state = run, config, world, state
        self._logs: StepLogs | None = None
        if world.is_main:
            self._logs = StepLogs(
                run,
                tensorboard=config.tracking.tensorboard,
                purge_step=state.step + 1,
                has_tokens=config.tracking.token_rows != 0,
            )
            self._speed = StepSpeed(state.policy)
        self._rollouts: list[dict[str, Any]] = []
        self._tokens: list[dict[str, Any]] = []
        self._drawn = 0
        self._save_seconds = 0.0

    def add_rollouts(
        self,
        step: int,
        samples: Sequence[ScoredSample],
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        discarded: Sequence[Discarded] = (),
    ) -> None:
        """Log a new buffer's samples with the next step, then those that were discarded."""
        if self._logs is None:
            return
        self._rollouts = rollout_rows(step, samples, rewards, advantages)
        self._drawn = sum(sample.length for sample in [*samples, *(each.sample for each in discarded)])
        if discarded:
            self._rollouts += discarded_rows(step, discarded, self._config.algorithm)

    def add_tokens(self, step: int, of: int, rows: Sequence[TokenRow]) -> None:
        """Log completions' tokens with the step whose pass gave their values; ``of`` is that of their other rows."""
        self._tokens = list(token_lines(step, of, rows))

    def write(
        self,
        step: int,
        sums: Sequence[TokenSums],
        grad_norm: float,
        learning_rate: float,
        rows_per_pass: int,
        clock: StageClock,
    ) -> None:
        """Log a step. ``sums``: those of all ranks; ``grad_norm``: before clipping; ``rows_per_pass``: completions that
        a forward and backward pass took at most, on the rank with the least memory."""
        sign_of_life("step")
        if self._logs is None:
            return
        state, config = self._state, self._config
        assert state.buffer is not None
        tokens, ratios = token_metrics(sums, config.algorithm.rollout_correction_cap)
        row: dict[str, Any] = {
            "step": step,
            **state.buffer.metrics,
            **tokens,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            **({"loss_scale": state.loss_scale} if state.scaler.is_enabled() else {}),
            **(state.noise_scale.metrics(config.rollout.num_generations) if state.noise_scale else {}),
            "num_tokens": state.num_tokens,
            "epoch": state.source.epoch(state.num_prompts),
            **self._speed.metrics(sums, self._drawn, clock.laps),
            "memory/rows_per_pass": rows_per_pass,
            **clock.laps,
            "time/save": self._save_seconds,  # waited for the save after the previous step
            "time/step": clock.total() + self._save_seconds,
        }
        row["health"] = health(row, config, state.noise_scale, state.fallbacks)
        self._logs.step(row, self._rollouts, {"step": step, **ratios}, self._tokens)
        self._rollouts, self._drawn, self._save_seconds = [], 0, 0.0
        print(console_line(row, config.run.total_steps), flush=True)

    def waited(self, seconds: float) -> None:
        """Add to the next step what training waited for a save."""
        self._save_seconds = seconds

    def saved(self, step: int, seconds: float) -> None:
        """Log a complete checkpoint and the seconds since its save began. Any thread of rank 0 may call it."""
        self._run.log_event("saved", step=step, checkpoint=f"step_{step}", seconds=round(seconds, 3))
        print(f"saved training_state/step_{step} ({seconds:.1f} s)\n", end="", flush=True)

    def raised(self, step: int, raised: Raised | None) -> None:
        """Log the level that a buffer raised."""
        if raised is None or not self._world.is_main:
            return
        self._run.log_event("level_raised", step=step, **asdict(raised))
        print(f"task {raised.task}: level {raised.level} (accuracy {raised.accuracy:.3f})", flush=True)

    def note(self, sentence: str) -> None:
        """Print what a step decided."""
        if sentence and self._world.is_main:
            print(sentence, flush=True)

    def stopped(self, step: int) -> None:
        """Log a requested stop."""
        if not self._world.is_main:
            return
        self._run.log_event("stopped", step=step)
        print(f"stopped after step {step} as requested; the full state is saved", flush=True)

    def close(self) -> None:
        if self._logs is not None:
            self._logs.close()
