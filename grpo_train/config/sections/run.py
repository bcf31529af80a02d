"""``run``: length, schedule, restarts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo_train.config.sections.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


class Run(Section):
    """Run length, save and evaluation schedule, restarts."""

    total_steps: PositiveInt = 100
    """Number of optimizer updates."""
    save_every: PositiveInt = 10
    """Save the full training state every N steps. It is also saved on stop and at the end."""
    eval_every: NonNegativeInt = 0
    """Pause training every N steps, and at the end, to evaluate in a separate process; 0 = never."""
    eval_initial: bool = False
    """Also evaluate the starting model before the first step."""
    seed: NonNegativeInt = 0
    """Seed of data order, sampling and new weights."""
    deterministic: bool = False
    """Use only kernels that repeat bit for bit on a GPU, which are slower, so that two runs of a config are equal. On a
    CPU they are in any case."""
    max_restarts: NonNegativeInt = 0
    """Maximum number of restarts after crashes, each from the latest checkpoint. The count is reset after save_every
    steps of progress. An error of the config, the data or a checkpoint, and the same exception twice at the same step,
    are not retried."""
    restart_wait: list[NonNegativeFloat] = Field(default_factory=lambda: [10.0, 60.0, 300.0])
    """Seconds to wait before the first, second, … restart in a row; the last number is used from there on."""
    stall_timeout: PositiveFloat | Literal["auto"] = "auto"
    """Seconds without a step, an evaluation chunk, a written checkpoint file or a growing download after which a stage
    counts as stalled: the stacks of its processes are written to console.log, it is ended, and restarted as after a
    crash. ``auto`` = the larger of 10 minutes and 10 median steps. At least an hour before the first step."""
    auto_resume: bool = False
    """Let the keeper of this machine (``grpo-train keeper --install``) resume the run after a reboot, or when its
    supervisor was killed."""
    nproc: PositiveInt = 1
    """Number of processes, one per GPU, on all machines together."""
    nodes: PositiveInt = 1
    """Number of machines that train together, with a run directory on a disk that all see. On each machine but the
    first, run ``grpo-train join RUN``. In a SLURM job: the job's nodes."""
    keep_last: NonNegativeInt = 0
    """Keep only the newest N checkpoints, step_final and checkpoints being evaluated; 0 = keep all. With
    backup.every_save, only checkpoints that are in the backup are removed."""
    keep_every: NonNegativeInt = 0
    """With keep_last: also keep every checkpoint whose step is a multiple of N; 0 = none."""
