"""The state of a training process: everything a step needs or changes, restored from and saved to checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from grpo_train.algorithm import GradientNoiseScale, RoleBaselines
from grpo_train.config.schema import Config
from grpo_train.policy.loading import load_policy, pick_device, use_repeating_kernels
from grpo_train.policy.locate import (
    PolicyError,
    at_commit,
    base_of_checkpoint,
    check_weights,
    resolve_backbone,
    weight_hash,
)
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.policy.memory import RowLimit
from grpo_train.rewards import Rewards, load_rewards
from grpo_train.rollout.adversary import START, Adversary, make_adversary
from grpo_train.rollout.backends import make_backend
from grpo_train.rollout.collect import Collector, Sample, SingleTurn
from grpo_train.rollout.prompts import Prompt, PromptSource
from grpo_train.rollout.self_play import SelfPlay
from grpo_train.run_dir import Checkpoint, RunDir
from grpo_train.run_dir.keeping import remove_hidden
from grpo_train.tasks import Mixture, TaskError, load_task
from grpo_train.tasks.shared.adversarial import AdversarialTask
from grpo_train.tasks.shared.self_play import SelfPlayTask
from grpo_train.train import buffer as buffers
from grpo_train.train import curriculum as curricula
from grpo_train.train.budget import TokenBudget
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.checkpoint import (
    CheckpointError,
    CheckpointSaver,
    check_adapter,
    collect_content,
    load_extra,
    load_info,
    load_training_state,
    seed_everything,
)
from grpo_train.train.compiling import Compiling
from grpo_train.train.curriculum import LevelControl, Raised
from grpo_train.train.distributed import World
from grpo_train.train.gradients import GradientSum
from grpo_train.train.health import BLOCKS
from grpo_train.train.optimizer import apply_settings, make_optimizer
from grpo_train.train.pass_rates import PassRateFilter, load_filters
from grpo_train.train.reference import Reference, load_reference
from grpo_train.train.resume import (
    check_position,
    config_changes,
    library_versions,
    prompts_drawn,
    trial_differences,
)

PROBES = "probes"
"""File name (without suffix) of the noise scale's averages in a checkpoint."""
SCALER = "loss_scale"
"""File name (without suffix) of float16's loss scale in a checkpoint."""
LIMITS = "rows_per_pass"
"""File name (without suffix), in a checkpoint, of what each rank found at run time (:meth:`TrainingState._limits`): a
resume takes the same passes."""
OPPONENT = "opponent: "
"""Precedes the names of the trials of an opponent's backend."""
BASELINES = "baselines"
"""File name (without suffix) of self-play's baselines in a checkpoint."""


class TrainingState:
    """Created identically on every rank. Public attributes are what :func:`grpo_train.train.loop.train` works with."""

    def __init__(self, run: RunDir, config: Config, world: World, ckpt: Path | None) -> None:
        """Restore the latest checkpoint, or start from the weights in ``ckpt``, or from the backbone.

        Raises RunDirError, CheckpointError, PolicyError, TaskError.
        """
        self._run, self._config, self._world = run, config, world
        if config.run.deterministic:
            use_repeating_kernels()
        seed_everything(config.run.seed, 0)  # the same on every rank: new adapters must start equal
        latest: Checkpoint | None = world.from_main(run.resume_point)
        weights = latest.path / "model" if latest else check_weights(ckpt, config.model.adapter) if ckpt else None
        if latest:
            check_adapter(latest, config.model.adapter)
        self.curriculum = LevelControl(config) if config.curriculum.threshold is not None else None
        if self.curriculum and latest and (saved := load_extra(latest, curricula.FILE)):
            self.curriculum.load_state_dict(saved)
        self.task = self.curriculum.mixture() if self.curriculum else load_task(config.task, config.sandbox)
        rewards = load_rewards(self.task, config, run.logs / f"failed_reward_rank{world.rank}.json")
        base = base_of_checkpoint(latest.path, run.root) if latest else None
        self.policy = load_policy(
            config.model,
            run.root,
            pick_device(config.model.device, world.local_rank),
            weights=weights,
            base=base,
            gradient_checkpointing=config.train.gradient_checkpointing,
        )
        self.saved_info = load_info(latest) if latest else {}
        """``training_info.json`` of the restored checkpoint; {} for a fresh start."""
        self.changes = config_changes(self.saved_info.get("config") or {}, config)
        now = {"device": self.policy.device_name, "versions": library_versions()}
        self._trial_differences = trial_differences(self.saved_info, now, self.changes)
        self.failed, self.repeated = self._failed_trials()
        """What the checkpoint's run did without, by trial: not tried again; and a sentence on what is."""
        self.optimizer, self.scheduler = make_optimizer(self.policy, config.optimizer, config.run.total_steps)
        self.saver = CheckpointSaver(run, self.policy)
        self.gradients = GradientSum(self.policy.trainable())
        self.forward = LogprobForward(
            self.policy,
            temperature=config.rollout.temperature,
            packing=config.train.packing,
            chunked=config.train.chunked_logprobs,
            token_budget=config.token_budget,
            longest=config.rollout.max_prompt_length + config.rollout.max_completion_length,
        )
        self.compiling = Compiling(self.forward, config, world)
        self.budget = TokenBudget(config, self.policy, world)
        self.scaler = torch.amp.GradScaler(self.policy.device.type, enabled=self.policy.autocast_dtype == torch.float16)
        """Scales the loss of float16, whose gradients would underflow."""
        self.scaler.scale(torch.zeros((), device=self.policy.device))  # a step without a loss must find a scale, too
        self.loss_scale = 1.0
        """What the loss of this step was multiplied by."""
        per_pass = config.microbatch_size * config.rollout.num_generations
        self.gradient_rows = RowLimit(per_pass, "train.microbatch_size", self.budget.recompute)
        self.score_rows = RowLimit(config.tf_micro_batch, "train.tf_micro_batch")
        start = self._load_start(base, is_fresh=latest is None)
        self.reference = start if config.algorithm.beta > 0 else None
        is_self_play = isinstance(self.task, SelfPlayTask)
        self.baselines = RoleBaselines(config.algorithm.role_baseline_decay) if is_self_play else None
        """Self-play: each role's usual reward."""
        self.backend = make_backend(config, self.policy, self.task.stop, self.failed)
        self.collector = self._make_collector(rewards, start)
        self.filters: dict[str, PassRateFilter] = world.from_main(lambda: load_filters(run, config))
        """``task.pass_rate`` by the label of its task."""
        self.source = PromptSource(
            self.task,
            self.policy.tokenizer,
            seed=config.run.seed,
            max_prompt_length=config.rollout.max_prompt_length,
            limit=config.task.limit,
            keep=self.filters
            if isinstance(self.task, Mixture)
            else dict(zip([""], self.filters.values(), strict=False)),
        )
        if any(other != self.source.fingerprints for other in world.gather(self.source.fingerprints)):
            raise TaskError(
                "task.path: the processes read different training problems; copy the same files to each machine"
            )
        decay = config.algorithm.noise_scale_decay
        self.noise_scale = GradientNoiseScale(decay=decay) if config.algorithm.noise_scale else None

        # Replaced by the saved generators when the world size is the same. With another, the step in the seed keeps a
        # resume from repeating the random numbers of step 0.
        seed_everything(config.run.seed, world.rank, latest.step if latest else 0)
        if latest:
            load_training_state(latest, self.optimizer, self.scheduler, world)
        if any(key.startswith("optimizer.") or key == "run.total_steps" for key in self.changes):
            apply_settings(self.optimizer, self.scheduler, config.optimizer)
        self.step = latest.step if latest else 0
        self.num_tokens = int(self.saved_info.get("num_tokens", 0))
        """Tokens of all prompts and completions so far."""
        self.buffer: RolloutBuffer | None = None
        """The rollout buffer in use; None = the next step makes one."""
        if latest:
            check_position(self.changes, self.step, config, run.config_file)
            self._restore_extras(latest)
        else:
            self.compiling.decide(None)
        self.num_prompts = prompts_drawn(self.saved_info, self.step, config, has_buffer=self.buffer is not None)
        """Positions of the data order that the buffers so far have used."""
        self._base = self._hashed(self.saved_info.get("base_model") or {"name": self.policy.base})
        if world.is_main:
            remove_hidden(run)

    def _hashed(self, base: dict[str, Any]) -> dict[str, Any]:
        """The model under the run's weights, with its hash; earlier versions recorded none of some formats."""
        if base.get("weights_sha256"):
            return base
        try:
            found = weight_hash(resolve_backbone(base["name"], self._run.root))
        except PolicyError:  # full weights do not need it any more
            found = ""
        if found and self.step and self._world.is_main:
            print(f"{base['name']}: the checkpoint has no SHA-256 of these weights; recorded from now on", flush=True)
        return {**base, "weights_sha256": found}

    def _load_start(self, base: str | None, *, is_fresh: bool) -> Reference | None:
        """The model the run started from, if the KL penalty or an opponent needs it."""
        config = self._config
        is_opponent = isinstance(self.task, AdversarialTask) and config.task.opponent == START
        if not (config.algorithm.beta > 0 or is_opponent):
            return None
        settings = config.model.model_copy(update={"backbone": at_commit(config.model.backbone, base)})
        ckpt = self._run.launched().get("ckpt")
        return load_reference(self._run, settings, self.policy, self.forward, self._world, ckpt, is_fresh=is_fresh)

    def _make_collector(self, rewards: Rewards, start: Reference | None) -> Collector:
        task, policy, config = self.task, self.policy, self._config
        backend = self.backend
        if isinstance(task, SelfPlayTask):
            return SelfPlay(task, rewards, backend, policy, config)
        if isinstance(task, AdversarialTask):
            in_place = start.in_place if start else nullcontext
            failed = {name.removeprefix(OPPONENT): each for name, each in self.failed.items() if OPPONENT in name}
            return make_adversary(task, rewards, backend, policy, config, self._run.root, in_place, failed)
        return SingleTurn(task, rewards, backend, policy, config)

    def _failed_trials(self) -> tuple[dict[str, str], str]:
        """The checkpoint's ``fallbacks`` of this rank, which hold as they were found under the same conditions; and a
        sentence where they do not hold: what failed is tried again."""
        saved: list[dict[str, str]] = self.saved_info.get("fallbacks") or []
        is_same_size = len(saved) == self._world.size
        own = saved[self._world.rank] if is_same_size else {name: each[name] for each in saved for name in each}
        if not (own and self._trial_differences):
            return own, ""
        reasons, sentences = ("; ".join(each) for each in (self._trial_differences, own.values()))
        return {}, f"trials that failed before this resume run again ({reasons}): {sentences}"

    @property
    def fallbacks(self) -> dict[str, str]:
        """What this rank does without, as a trial failed: sentences by the name of the trial."""
        found = {BLOCKS: self.compiling.fallback} if self.compiling.fallback else {}
        found |= self.backend.fallbacks
        if isinstance(self.collector, Adversary):
            found |= {OPPONENT + name: each for name, each in self.collector.opponent.fallbacks.items()}
        return found

    def _restore_extras(self, checkpoint: Checkpoint) -> None:
        if pending := load_extra(checkpoint, buffers.FILE):
            self.buffer = buffers.from_state(pending, self._world, self._config)
        if self.baselines and (saved := load_extra(checkpoint, BASELINES)):
            self.baselines.load_state_dict(saved)
        if self.scaler.is_enabled() and (scale := load_extra(checkpoint, SCALER)):
            self.scaler.load_state_dict(scale)
        is_same_device = self.saved_info.get("device") == self.policy.device_name
        self._restore_limits((is_same_device and load_extra(checkpoint, LIMITS)) or {})
        if self.noise_scale and (probes := load_extra(checkpoint, PROBES)):
            self.noise_scale.load_state_dict(probes["noise_scale"])

    def _limits(self) -> dict[str, Any]:
        """What each rank found at run time, for a checkpoint; {} where nothing is limited. Every rank calls it."""
        own = (self.gradient_rows.rows, self.score_rows.rows, self.budget.recomputes, self.compiling.is_on)
        *rows, recomputes, compiled = (list(each) for each in zip(*self._world.gather(own), strict=True))
        limits: dict[str, Any] = {}
        if self.budget.is_measured:
            limits["token_budget"] = self.budget.tokens
        if self.compiling.is_considered:
            limits["compiled"] = compiled
        configured = (self.gradient_rows.configured, self.score_rows.configured)
        is_limited = any(recomputes) or any(set(each) != {full} for each, full in zip(rows, configured, strict=True))
        return {"rows": rows, "recomputes": recomputes, **limits} if limits or is_limited else {}

    def _restore_limits(self, limits: dict[str, Any]) -> None:
        rank, size = self._world.rank, self._world.size
        for limit, rows in zip((self.gradient_rows, self.score_rows), limits.get("rows", ()), strict=False):
            limit.rows = min(limit.rows, rows[rank] if len(rows) == size else min(rows))
        recomputes, compiled = limits.get("recomputes", []), limits.get("compiled", [])
        if recomputes[rank] if len(recomputes) == size else any(recomputes):
            self.budget.recompute()
        if self._trial_differences:
            compiled = []
        decided = (compiled[rank] if len(compiled) == size else all(compiled)) if compiled else None
        self.compiling.decide(decided, self.failed.get(BLOCKS, ""))
        if "token_budget" in limits and not self.changes:
            self.budget.restore(limits["token_budget"])

    def draw_prompts(self, count: int) -> list[Prompt]:
        """The run's next prompts, the same on every rank."""
        prompts = self.source.draw(self.num_prompts, count)
        self.num_prompts += count
        return prompts

    def generate_and_judge(self, buffer_index: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample]:
        """See :meth:`~grpo_train.rollout.collect.Collector.generate_and_judge`."""
        with self.policy.autocast():  # tasks and reward functions judge completions while others are generated
            return self.collector.generate_and_judge(buffer_index, groups, prompts)

    def raise_level(self, samples: Sequence[Sample]) -> Raised | None:
        """Add a buffer's samples to the curriculum. A level that they raise applies to the next buffer."""
        judged = ((sample.problem.task, sample.verdict.correct) for sample in samples)
        raised = self.curriculum.add(judged) if self.curriculum else None
        if raised and self.curriculum and isinstance(self.task, Mixture):
            part = self.task.parts[raised.task] = self.curriculum.task()
            self.source.set_part(raised.task, part)
        return raised

    def unscale(self, squared_norms: list[float]) -> list[float]:
        """Divide the summed gradient by the loss scale; returns the micro-batches' squared norms without it."""
        if not self.scaler.is_enabled():
            return squared_norms
        self.loss_scale = self.scaler.get_scale()
        self.scaler.unscale_(self.optimizer)
        return [norm / self.loss_scale**2 for norm in squared_norms]

    def update_noise_scale(self, squared_norms: list[float], grad_norm: float) -> None:
        """Add a step to the noise scale.

        ``squared_norms`` are those of all ranks' micro-batch gradients, as they enter the sum.
        """
        if self.noise_scale is None:
            return
        # A micro-batch's gradient is its share of the step's: times their number, it is a mean like the step's.
        # Sorted, because the order of their sum must not depend on which rank computed which.
        own = [norm * len(squared_norms) ** 2 for norm in sorted(squared_norms)]
        self.noise_scale.update(own, grad_norm**2, self._config.microbatch_size)

    def check_weights(self, step: int) -> None:
        """Raise CheckpointError if an update left NaN or Inf in the weights: they must not be saved."""
        largest = [torch.linalg.vector_norm(weight.detach(), math.inf) for weight in self.policy.trainable()]
        if not bool(torch.isfinite(torch.stack(largest)).all()):
            raise CheckpointError(
                f"weights contain NaN or Inf after step {step} and are not saved (optimizer.learning_rate "
                f"{self._config.optimizer.learning_rate:g}); set a lower learning rate in {self._run.config_file} and "
                "resume, or start a new run"
            )

    def info(self) -> dict[str, Any]:
        """Content of ``training_info.json``, except step and time."""
        return {
            "world_size": self._world.size,
            "seed": self._config.run.seed,
            "base_model": self._base,
            "adapter": self._config.model.adapter,
            "num_tokens": self.num_tokens,
            "num_prompts": self.num_prompts,
            "data": self.source.fingerprints,
            **({"pass_rate": {name: each.counts for name, each in self.filters.items()}} if self.filters else {}),
            "config": self._config.model_dump(mode="json"),
            "device": self.policy.device_name,
            "threads": torch.get_num_threads(),
            "versions": library_versions(),
        }

    def save(self, step: int, *, is_final: bool, then: Callable[[float], None]) -> float:
        """Save ``training_state/step_N`` beside training; returns the seconds that training waited.

        Every rank calls it. See :meth:`CheckpointSaver.save`.
        """
        start = time.perf_counter()
        extra: dict[str, Any] = {}
        if self.noise_scale:
            extra[PROBES] = {"noise_scale": self.noise_scale.state_dict()}
        if limits := self._limits():
            extra[LIMITS] = limits
        if self.scaler.is_enabled():
            extra[SCALER] = self.scaler.state_dict()
        if self.baselines:
            extra[BASELINES] = self.baselines.state_dict()
        if self.curriculum:
            extra[curricula.FILE] = self.curriculum.state_dict()
        if self.buffer is not None and step % self._config.steps_per_buffer:
            extra[buffers.FILE] = buffers.to_state(self.buffer, self._world, self._config)
        content = collect_content(
            step,
            self.policy,
            self.optimizer,
            self.scheduler,
            self._world,
            info={**self.info(), "fallbacks": self._world.gather(self.fallbacks)},
            is_final=is_final,
            extra=extra,
        )
        if content is not None:
            self.saver.save(content, then)
        return time.perf_counter() - start
