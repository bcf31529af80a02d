"""The command line of a training process: finds or makes the run, joins the group, reports how it failed.

Behind ``python -m grpo_train.train`` and ``torchrun … -m grpo_train.train``. Under the supervisor it is given
``--run-dir`` and leaves status.json alone; started by hand with ``--cfg`` it makes the run and rank 0 owns the status.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from grpo_train.config import ConfigError, dump_config, load_config, read_config_text, with_changes
from grpo_train.config.schema import Config
from grpo_train.policy.locate import PolicyError, recorded_base
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter, create_run, resolve_root
from grpo_train.run_dir.files import atomic_write, utc_now
from grpo_train.run_dir.processes import PARENT_VARIABLE, die_with_parent
from grpo_train.sandbox import SandboxError
from grpo_train.tasks import TaskError
from grpo_train.train.checkpoint import CheckpointError
from grpo_train.train.distributed import Group
from grpo_train.train.preflight import check_start

USER_ERRORS = (ConfigError, RunDirError, TaskError, PolicyError, CheckpointError, SandboxError)
"""Failures whose message is all that a user needs."""
HEARTBEAT_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when the stage is done or stopped as asked, 1 after an error."""
    options = _parse(arguments)
    if PARENT_VARIABLE in os.environ:
        die_with_parent()
    group = Group.join()
    run: RunDir | None = None
    beat: _Heartbeat | None = None
    try:
        if options.run_dir:
            run = RunDir(Path(options.run_dir).absolute())
            config = load_config(run.config_file.read_text(encoding="utf-8"), source=str(run.config_file))
        else:
            run, config = _make_run(options, group)
            beat = _Heartbeat(run, config) if group.is_main else None
        if config.run.nproc != group.world_size:
            config = with_changes(config, run={"nproc": group.world_size})
        from grpo_train.train.loop import train

        total = config.run.total_steps
        ckpt = Path(options.ckpt) if options.ckpt else None
        reached = train(run, config, group, until=min(options.until or total, total), ckpt=ckpt)
        if beat is not None:
            beat.end(state="finished" if reached >= total else "stopped", exit_code=0)
        group.leave()
        return 0
    except SystemExit:
        raise
    except BaseException as error:
        message = in_words(error)
        print(f"error: {message}" if message else traceback.format_exc(), file=sys.stderr, flush=True)
        facts = {
            "rank": group.rank,
            "time": utc_now(),
            "message": message or f"{type(error).__name__}: {error}",
            "traceback": "" if message else traceback.format_exc(),
        }
        if run is not None:
            _report(run, facts)
        if beat is not None:
            state = "killed" if isinstance(error, KeyboardInterrupt) else "crashed"
            beat.end(state=state, exit_code=1, error={"summary": facts["message"], **facts})
        return 1


def in_words(error: BaseException) -> str:
    """What a user needs to be told about an expected failure; "" for any other, which shows its traceback."""
    if isinstance(error, USER_ERRORS):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
        what = f"cannot write {error.filename or 'the logs'}: {error.strerror}"
        return f"{what}; earlier checkpoints are intact: make room (or the file system writable), then resume"
    return ""


class _Heartbeat:
    """``status.json`` of a run that has no supervisor, kept fresh by a thread of rank 0."""

    def __init__(self, run: RunDir, config: Config) -> None:
        fixed = {"total_steps": config.run.total_steps, "nproc": config.run.nproc, "restarts": 0}
        self._status = StatusWriter(run.path, **fixed)
        self._status.update(state="running", stage="train", started_at=utc_now(), exit_code=None, error=None)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="status", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            try:
                self._status.update()
            except OSError:
                pass  # a full disk must not end the run

    def end(self, **fields: Any) -> None:
        """Write how it ended."""
        self._ended.set()
        self._thread.join()
        self._status.update(stage="", **fields)
        self._status.close()


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
    text = read_config_text(Path(options.cfg))
    overrides = [*options.set, f"run.nproc={group.world_size}"]
    ckpt = Path(options.ckpt).expanduser().absolute() if options.ckpt else None
    config = load_config(text, overrides, source=options.cfg)
    config = check_start(config, resolve_root(options.root), ckpt)
    told: dict[str, str] = {}
    if group.is_main:
        launch = {
            "argv": sys.argv,
            "config_name": options.cfg,
            "config_text": text,
            "overrides": overrides,
            "ckpt": recorded_base(str(ckpt), resolve_root(options.root)) if ckpt else None,
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


def _report(run: RunDir, facts: dict[str, Any]) -> None:
    """Leave the error where the supervisor finds it."""
    try:
        atomic_write(run.path / "control" / f"error_rank{facts['rank']}.json", json.dumps(facts) + "\n")
    except OSError:
        pass  # a full disk: the console has it all the same
