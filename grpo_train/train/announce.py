"""Startup report of a stage, on the console and in ``events.jsonl``: settings, fallbacks, inexact resumes."""

from __future__ import annotations

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.display import setting
from grpo_train.tasks import TaskDefaults
from grpo_train.train.distributed import World
from grpo_train.train.resume import data_differences, new_keys, process_differences
from grpo_train.train.state import TrainingState

NAMED = 3
"""New keys that the report names."""
GSPO_EPSILON = 0.01
"""Above this, ``algorithm.epsilon`` hardly clips with gspo, whose ratio is a mean over tokens."""


def announce(run: RunDir, config: Config, world: World, state: TrainingState, until: int) -> None:
    """Print the start line and notes, and log the event ``training``. Rank 0 only."""
    if not world.is_main:
        return
    prompts, too_long = len(state.source.prompts), state.source.num_too_long
    print(
        f"{run.name}: steps {state.step + 1} to {until} of {config.run.total_steps} on {state.policy.device_name}, "
        f"processes: {world.size}, prompts per buffer: {config.rollout.buffer_size}, completions per prompt: "
        f"{config.rollout.num_generations}, steps per buffer: {config.steps_per_buffer}, micro-batches per step and "
        f"process: {config.grad_accum_steps}, training prompts: {prompts}"
        + (f" ({too_long} longer than rollout.max_prompt_length skipped)" if too_long else ""),
        flush=True,
    )
    for note in _notes(config, world, state):
        print(note, flush=True)
    differences = _differences(config, world, state)
    if differences:
        print(f"this resume is not bit-exact: {'; '.join(differences)}", flush=True)
    run.log_event(
        "training", step=state.step, until=until, device=state.policy.device_name, prompts=prompts, left_out=too_long,
        differences=differences, fallbacks=[*state.forward.notes, *state.fallbacks.values()],
        pass_rate={label: each.counts for label, each in state.filters.items()},
    )  # fmt: skip


def _notes(config: Config, world: World, state: TrainingState) -> list[str]:
    task_notes = state.task.notes if isinstance(state.task, TaskDefaults) else ()
    filters = [each.note(label) for label, each in state.filters.items()]
    notes = [
        *task_notes,
        *filters,
        state.forward.description,
        *state.forward.notes,
        *filter(None, [state.compiling.note, state.repeated]),
    ]
    if state.step and "data" not in state.saved_info:
        notes.append(
            "the checkpoint has no fingerprint of the training problems (from an earlier version); saved from now on"
        )
    epsilon = config.algorithm.epsilon
    if config.algorithm.loss_type == "gspo" and epsilon is not None and epsilon > GSPO_EPSILON:
        notes.append(f"algorithm.epsilon {epsilon:g} hardly clips with gspo; its paper uses 0.0003 and 0.0004")
    if state.noise_scale and not _is_measured(config, world):
        notes.append("gns/* is not measured: it needs at least two micro-batches per step (train.microbatch_size)")
    return notes


def _differences(config: Config, world: World, state: TrainingState) -> list[str]:
    """Reasons why a resume is not bit-exact."""
    differences = process_differences(state.saved_info, state.info())
    differences += data_differences(state.saved_info, state.source.fingerprints)
    differences += [f"{key}: was {setting(old)}, is {setting(new)}" for key, (old, new) in state.changes.items()]
    if "fallbacks" in state.saved_info and not state.repeated:
        differences += [each for name, each in state.fallbacks.items() if name not in state.failed]
    if added := new_keys(state.saved_info.get("config") or {}, config):
        named = ", ".join(added[:NAMED])
        more = f" and {len(added) - NAMED} more keys" if len(added) > NAMED else ""
        differences.append(f"the saved config does not have {named}{more} (from an earlier version?)")
    if state.step and state.noise_scale and _is_measured(config, world) and not state.noise_scale.steps:
        differences.append("noise scale: averages were not saved and restart")
    if state.step % config.steps_per_buffer and state.buffer is None:
        differences.append("rollout buffer: was not saved; a new one is generated")
    return differences


def _is_measured(config: Config, world: World) -> bool:
    """Whether a step has the two micro-batches that the noise scale needs."""
    return config.grad_accum_steps * world.size > 1
