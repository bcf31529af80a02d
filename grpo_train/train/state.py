"""The state of a training process: all that a step needs or changes, from the latest checkpoint and back into one."""

from __future__ import annotations

import math
import platform
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_train.algorithm import GradientNoiseScale, RoleBaselines
from grpo_train.config.schema import Config
from grpo_train.policy.loading import load_policy, pick_device
from grpo_train.policy.locate import at_commit, base_of_checkpoint, check_weights, resolve_backbone, weight_hash
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rewards import Rewards, load_rewards
from grpo_train.rollout.adversary import START, AdversarialTask, make_adversary
from grpo_train.rollout.collect import Collector, SingleTurn
from grpo_train.rollout.prompts import PromptSource
from grpo_train.rollout.self_play import SelfPlay
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.run_dir import RunDir
from grpo_train.tasks import load_task
from grpo_train.tasks.shared.self_play import SelfPlayTask
from grpo_train.train import buffer as buffers
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.checkpoint import (
    CheckpointError,
    check_adapter,
    find_resume_point,
    load_extra,
    load_training_state,
    remove_leftovers,
    save_checkpoint,
    seed_everything,
)
from grpo_train.train.distributed import Group
from grpo_train.train.gradients import GradientSum
from grpo_train.train.reference import Reference, load_reference

PROBES = "probes"
"""Name of the file of the probes' averages in a checkpoint."""
BASELINES = "baselines"
"""Name of the file of self-play's baselines in a checkpoint."""


class TrainingState:
    """Made alike on every rank; what is public here is what the loop in :mod:`grpo_train.train` works with."""

    def __init__(self, run: RunDir, config: Config, group: Group, ckpt: Path | None) -> None:
        """Restore the latest checkpoint, or start from ``ckpt``'s weights, or from the backbone's.

        Raises RunDirError, CheckpointError, PolicyError, TaskError.
        """
        self._run, self._config, self._group = run, config, group
        seed_everything(config.run.seed, 0)  # alike on every rank: new adapters must start the same
        latest = find_resume_point(run, group)
        weights = latest.path / "model" if latest else check_weights(ckpt, config.model.adapter) if ckpt else None
        if latest:
            check_adapter(latest, config.model.adapter)
        self.task = load_task(config.task, config.sandbox)
        rewards = load_rewards(self.task, config)
        base = base_of_checkpoint(latest.path, run.root) if latest else None
        self.policy = load_policy(
            config.model,
            run.root,
            pick_device(config.model.device, group.local_rank),
            weights=weights,
            base=base,
            gradient_checkpointing=config.train.gradient_checkpointing,
        )
        self.optimizer = torch.optim.AdamW(
            self.policy.trainable(),
            lr=config.optimizer.learning_rate,
            betas=(config.optimizer.adam_beta1, config.optimizer.adam_beta2),
            eps=config.optimizer.adam_epsilon,
            weight_decay=config.optimizer.weight_decay,
            fused=True,
        )
        warmup = config.optimizer.warmup_steps
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda done: min(1.0, (done + 1) / (warmup + 1))
        )
        self.gradients = GradientSum(self.policy.trainable())
        self.forward = LogprobForward(
            self.policy,
            temperature=config.rollout.temperature,
            packing=config.train.packing,
            chunked=config.train.chunked_logprobs,
            token_budget=config.train.token_budget,
        )
        faces_start = isinstance(self.task, AdversarialTask) and config.task.opponent == START
        start: Reference | None = None
        if config.algorithm.beta > 0 or faces_start:
            started_from = run.read_launch().get("ckpt")
            settings = config.model.model_copy(update={"backbone": at_commit(config.model.backbone, base)})
            start = load_reference(run, settings, self.policy, self.forward, group, started_from, fresh=latest is None)
        self.reference = start if config.algorithm.beta > 0 else None
        self.baselines = (
            RoleBaselines(config.algorithm.role_baseline_decay) if isinstance(self.task, SelfPlayTask) else None
        )
        """Self-play: what each role's rewards are compared to."""
        backend = TransformersBackend(self.policy.model, self.policy.tokenizer, stop=self.task.stop)
        self.collector = self._collector(rewards, backend, start)
        self.source = PromptSource(
            self.task,
            self.policy.tokenizer,
            seed=config.run.seed,
            max_prompt_length=config.rollout.max_prompt_length,
            limit=config.task.limit,
        )
        decay = config.algorithm.noise_scale_decay
        self.noise_scale = GradientNoiseScale(decay=decay) if config.algorithm.noise_scale else None

        # Replaced by the saved generators where as many ranks go on; else a step never draws what an earlier one drew.
        seed_everything(config.run.seed, group.rank, latest.step if latest else 0)
        self._restored = load_training_state(latest, self.optimizer, self.scheduler, group) if latest else {}
        self.step = latest.step if latest else 0
        self._changed = _changes(self._restored.get("config") or {}, config)
        if any(key.startswith("optimizer.") for key in self._changed):
            self._set_rates()
        self.num_tokens = int(self._restored.get("num_tokens", 0))
        self.buffer: RolloutBuffer | None = None
        """The rollout buffer that the next step goes on with; None = it makes a new one."""
        if latest:
            self._check_position()
            if pending := load_extra(latest, buffers.FILE):
                self.buffer = buffers.from_state(pending, group, config)
            if self.baselines and (saved := load_extra(latest, BASELINES)):
                self.baselines.load_state_dict(saved)
            if self.noise_scale and (probes := load_extra(latest, PROBES)):
                self.noise_scale.load_state_dict(probes["noise_scale"])
        self._base = self._restored.get("base_model") or {
            "name": self.policy.base,
            "weights_sha256": weight_hash(resolve_backbone(self.policy.base, run.root)),
        }

    def _collector(self, rewards: Rewards, backend: TransformersBackend, start: Reference | None) -> Collector:
        """Who fills the buffer; ``start``: the model that the run started from, where it is needed."""
        task, policy, config = self.task, self.policy, self._config
        if isinstance(task, SelfPlayTask):
            return SelfPlay(task, rewards, backend, policy.tokenizer, config)
        if isinstance(task, AdversarialTask):
            in_place = start.in_place if start else nullcontext
            return make_adversary(task, rewards, backend, policy, config, self._run.root, in_place)
        return SingleTurn(task, rewards, backend, policy.tokenizer, config)

    def check_weights(self, step: int) -> None:
        """Raises CheckpointError where an update has left weights that are no numbers: nothing of them is saved."""
        largest = [torch.linalg.vector_norm(weight.detach(), math.inf) for weight in self.policy.trainable()]
        if not bool(torch.isfinite(torch.stack(largest)).all()):
            raise CheckpointError(
                f"step {step} has left weights that are not finite (optimizer.learning_rate "
                f"{self._config.optimizer.learning_rate:g}): they are not saved; set a lower rate in "
                f"{self._run.config_file} and resume, or start anew"
            )

    def save(self, step: int, *, final: bool) -> None:
        """Write ``training_state/step_N``. Raises CheckpointError when it cannot be written."""
        extra: dict[str, Any] = {}
        if self.noise_scale:
            extra[PROBES] = {"noise_scale": self.noise_scale.state_dict()}
        if self.baselines:
            extra[BASELINES] = self.baselines.state_dict()
        if self.buffer is not None and step % self._config.steps_per_buffer:
            extra[buffers.FILE] = buffers.to_state(self.buffer, self._group, self._config)
        info = {
            "seed": self._config.run.seed,
            "base_model": self._base,
            "adapter": self._config.model.adapter,
            "num_tokens": self.num_tokens,
            "config": self._config.model_dump(mode="json"),
            "device": self.policy.device_name,
            "threads": torch.get_num_threads(),
            "versions": _versions(),
        }
        save_checkpoint(
            self._run,
            step,
            self.policy,
            self.optimizer,
            self.scheduler,
            self._group,
            info=info,
            final=final,
            extra=extra,
        )

    def _set_rates(self) -> None:
        """Take the config's optimizer keys: the saved state holds those it was saved under."""
        wanted = self._config.optimizer
        self.scheduler.base_lrs = [wanted.learning_rate for _ in self.scheduler.base_lrs]
        for options in self.optimizer.param_groups:
            options["initial_lr"] = wanted.learning_rate
            options["lr"] = wanted.learning_rate * self.scheduler.lr_lambdas[0](self.scheduler.last_epoch)
            options["betas"] = (wanted.adam_beta1, wanted.adam_beta2)
            options["eps"], options["weight_decay"] = wanted.adam_epsilon, wanted.weight_decay
        self.scheduler._last_lr = [options["lr"] for options in self.optimizer.param_groups]

    def _check_position(self) -> None:
        """Raises CheckpointError where keys have changed on which the position in data and buffer depends."""
        frozen = ["algorithm.num_iterations", "algorithm.updates_per_buffer"]
        place = self.step % self._config.steps_per_buffer
        if place:
            frozen += ["rollout.buffer_size", "rollout.num_generations", "algorithm.beta"]
        changed = [
            f"{key} ({old} -> {self._changed[key][1]})" for key, (old, _) in self._changed.items() if key in frozen
        ]
        if changed:
            where = f"; or resume from step_{self.step - place}, where a buffer ends" if place else ""
            raise CheckpointError(
                f"{self._run.config_file}: {', '.join(changed)} cannot change at step {self.step}, which goes on with "
                f"the buffer or the position in the data that was saved: set it back{where}"
            )

    def announce(self, until: int) -> None:
        """Say what starts, what falls back, and what of a resume cannot be identical."""
        if not self._group.is_main:
            return
        remove_leftovers(self._run)
        config, prompts, left_out = self._config, len(self.source.prompts), self.source.left_out
        print(
            f"{self._run.name}: steps {self.step + 1} to {until} of {config.run.total_steps}, "
            f"{self._group.world_size} process(es), {config.rollout.buffer_size} prompts x "
            f"{config.rollout.num_generations} completions a buffer, {config.steps_per_buffer} step(s) a buffer, "
            f"{config.grad_accum_steps} micro-batch(es) a step and process; {prompts} training prompts"
            + (f" ({left_out} longer than rollout.max_prompt_length left out)" if left_out else ""),
            flush=True,
        )
        for note in (*getattr(self.task, "notes", ()), *self.forward.notes):
            print(note, flush=True)
        epsilon = config.algorithm.epsilon
        if config.algorithm.loss_type == "gspo" and epsilon is not None and epsilon > 0.01:
            print(
                f"algorithm.epsilon {epsilon:g} hardly clips with gspo, whose ratio is a mean over tokens: its paper "
                "has 0.0003 and 0.0004",
                flush=True,
            )
        measured = config.grad_accum_steps * self._group.world_size > 1
        if self.noise_scale and not measured:
            print(
                "gns/* is not measured: the noise scale needs two micro-batches a step (train.microbatch_size)",
                flush=True,
            )
        info, differences = self._restored, []
        if info and info.get("world_size") != self._group.world_size:
            differences.append(f"{info.get('world_size')} processes saved it, {self._group.world_size} go on")
        if info and info.get("threads") != torch.get_num_threads():
            differences.append(f"{info.get('threads')} threads saved it, {torch.get_num_threads()} go on")
        for library, saved in (info.get("versions") or {}).items():
            if saved != _versions()[library]:
                differences.append(f"{library} {saved} saved it, {_versions()[library]} goes on")
        differences += [f"{key} was {old}, is {new}" for key, (old, new) in self._changed.items()]
        if self.step and self.noise_scale and measured and not self.noise_scale.steps:
            differences.append("no averages of the noise scale were saved with it, they start anew")
        if self.step % config.steps_per_buffer and self.buffer is None:
            differences.append("no rollout buffer was saved with it, a new one is made")
        if differences:
            print(f"not bit for bit the run that never stopped: {'; '.join(differences)}", flush=True)
        self._run.log_event(
            "training", step=self.step, until=until, prompts=prompts, left_out=left_out, differences=differences
        )


def _changes(saved: dict[str, Any], config: Config) -> dict[str, tuple[Any, Any]]:
    """Keys that training depends on and that are not what they were, as section.key: (then, now)."""
    now = config.model_dump(mode="json")
    return {
        f"{section}.{key}": (saved[section][key], value)
        for section in ("model", "rollout", "algorithm", "optimizer", "task")
        for key, value in now[section].items()
        if key in saved.get(section, {}) and saved[section][key] != value
    }


def _versions() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
