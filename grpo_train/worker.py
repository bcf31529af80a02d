"""The command line of a training process: finds or makes the run, joins the group, reports how it failed.

Behind ``python -m grpo_train.train`` and ``torchrun … -m grpo_train.train``. Under the supervisor it is given
``--run-dir`` and leaves status.json alone; started by hand with ``--cfg`` it makes the run and rank 0 owns the status.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

from grpo_train.checkpoint import CheckpointError
from grpo_train.config import Config, ConfigError, dump_config, load_config
from grpo_train.distributed import Group
from grpo_train.files import atomic_write, utc_now
from grpo_train.policy.loading import PolicyError
from grpo_train.processes import die_with_parent
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter, create_run, resolve_root
from grpo_train.tasks import TaskError

USER_ERRORS = (ConfigError, RunDirError, TaskError, PolicyError, CheckpointError)
"""Failures whose message is all that a user needs."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when the stage is done or stopped as asked, 1 after an error."""
    options = _parse(arguments)
    if options.run_dir and "TORCHELASTIC_RUN_ID" not in os.environ:
        die_with_parent()  # torchrun's workers are torchrun's to end
    group = Group.join()
    run: RunDir | None = None
    status: StatusWriter | None = None
    state = "crashed"
    try:
        if options.run_dir:
            run = RunDir(Path(options.run_dir).absolute())
            config = load_config(run.config_file.read_text(), source=str(run.config_file))
        else:
            run, config = _make_run(options, group)
            if group.is_main:
                status = StatusWriter(run.path, total_steps=config.run.total_steps, nproc=group.world_size, restarts=0)
                status.update(state="running", stage="train", started_at=utc_now(), exit_code=None, error=None)
        if config.run.nproc != group.world_size:
            config = config.model_validate(
                {**config.model_dump(), "run": {**config.run.model_dump(), "nproc": group.world_size}}
            )
        from grpo_train.train import train

        total = config.run.total_steps
        ckpt = Path(options.ckpt) if options.ckpt else None
        reached = train(run, config, group, until=min(options.until or total, total), ckpt=ckpt)
        state = "finished" if reached >= total else "stopped"
        group.leave()
        return 0
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        known = isinstance(error, USER_ERRORS)
        print(f"error: {error}" if known else traceback.format_exc(), file=sys.stderr, flush=True)
        if isinstance(error, KeyboardInterrupt):
            state = "killed"
        if run is not None:
            _report(run, group.rank, error, known)
        return 1
    finally:
        if status is not None:
            status.update(state=state, exit_code=0 if state in ("finished", "stopped") else 1)
            status.close()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m grpo_train.train", description="One training process of a run.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cfg", help="a config file: makes a new run")
    what.add_argument("--run-dir", help="an existing run's directory (the supervisor gives this)")
    parser.add_argument("--ckpt", help="start from these weights: a peft adapter's or a full model's directory")
    parser.add_argument("--until", type=int, help="train to this step (default: run.total_steps)")
    parser.add_argument("--root", help="where runs live (default: LOCALFS_ROOT, else /lambda/nfs/localfs)")
    parser.add_argument("--run-name", help="name of the new run")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="override one key")
    return parser.parse_args(arguments)


def _make_run(options: argparse.Namespace, group: Group) -> tuple[RunDir, Config]:
    """A new run from ``--cfg``: rank 0 makes the directory, the others are told its path or its error."""
    text = _read_config(Path(options.cfg))
    overrides = [*options.set, f"run.nproc={group.world_size}"]
    config = load_config(text, overrides, source=options.cfg)
    told: dict[str, str] = {}
    if group.is_main:
        launch = {
            "argv": sys.argv,
            "config_name": options.cfg,
            "config_text": text,
            "overrides": overrides,
            "ckpt": options.ckpt,
            "nproc": group.world_size,
            "by": "shell",
        }
        try:
            run = create_run(resolve_root(options.root), launch, options.run_name)
            atomic_write(run.config_file, dump_config(config))
            told = {"path": str(run.path)}
        except RunDirError as error:
            told = {"error": str(error)}
    told = group.decide(told)
    if "error" in told:
        raise RunDirError(told["error"])
    return RunDir(Path(told["path"])), config


def _read_config(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the config {path}: {error.strerror} (give --cfg an existing YAML file)"
        ) from error


def _report(run: RunDir, rank: int, error: BaseException, known: bool) -> None:
    """Leave the error where the supervisor finds it."""
    message = str(error) if known else f"{type(error).__name__}: {error}"
    facts = {
        "rank": rank,
        "time": utc_now(),
        "message": message,
        "traceback": "" if known else traceback.format_exc(),
    }
    try:
        atomic_write(run.path / "control" / f"error_rank{rank}.json", json.dumps(facts) + "\n")
    except OSError:
        pass  # a full disk: the console has it all the same
