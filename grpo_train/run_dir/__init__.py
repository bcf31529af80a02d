"""The run directory (contract 1): the files of a run, who writes them and how to read them.

Standard library only, because the link's agent carries this package to boxes without anything installed. The box's
file system is the only source of truth: every program rebuilds what it needs to know about a run from here.

    ROOT/training_runs/RUN/   launch.json config.yaml status.json control/stop training_state/ logs/ tensorboard/
    ROOT/eval_runs/RUN_DATASET/   eval_config.yaml status.json step_N_DATASET/ consolidated_metrics.csv
    ROOT/archive/  ROOT/rl_runs/ (older layout: listed, and its step_N/ can be evaluated)
"""

from grpo_train.run_dir.evaluations import TABLE, eval_folder, list_baselines, list_evaluations, read_table
from grpo_train.run_dir.files import remove_tree, utc_from
from grpo_train.run_dir.manifest import MANIFEST, Checkpoint, list_checkpoints, problem_of, sha256, write_manifest
from grpo_train.run_dir.root import (
    ROOT_VARIABLE,
    check_name,
    create_run,
    existing_root,
    list_older_runs,
    list_runs,
    open_run,
    prepare_root,
    resolve_root,
)
from grpo_train.run_dir.run import RunDir
from grpo_train.run_dir.status import END_STATES, LIVE_STATES, RunDirError, StatusWriter, observe

__all__ = [
    "END_STATES", "LIVE_STATES", "MANIFEST", "ROOT_VARIABLE", "TABLE", "Checkpoint", "RunDir", "RunDirError",
    "StatusWriter", "check_name", "create_run", "eval_folder", "existing_root", "list_baselines", "list_checkpoints",
    "list_evaluations", "list_older_runs", "list_runs", "observe", "open_run", "prepare_root", "problem_of",
    "read_table", "remove_tree", "resolve_root", "sha256", "utc_from", "write_manifest",
]  # fmt: skip
