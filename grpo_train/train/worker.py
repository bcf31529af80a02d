"""Command line of a training process: finds or makes the run, joins the world, reports failures.

``python -m grpo_train.train`` and ``torchrun … -m grpo_train.train``. The supervisor passes ``--run-dir`` and owns
status.json. With ``--cfg`` a new run is made and rank 0 owns the status.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_train.config import dump_config, load_config, read_config_text, with_changes
from grpo_train.config.schema import Config
from grpo_train.rewards.user_code import blame
from grpo_train.run_dir import RunDir, StatusWriter, resolve_root
from grpo_train.run_dir.errors import UserError, code_of, disk_error, disk_fix, disk_reason
from grpo_train.run_dir.files import atomic_write, utc_now
from grpo_train.run_dir.garbage import resume_collection
from grpo_train.run_dir.machine import set_umask
from grpo_train.run_dir.processes import NODE_VARIABLE, PARENT_VARIABLE, die_with_parent
from grpo_train.run_dir.signs import show_stacks_on_request
from grpo_train.run_dir.status import write_from_reserve
from grpo_train.train.distributed import World
from grpo_train.train.preflight import make_run

HEARTBEAT_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Run the training process; returns exit code 0 if it finished or stopped on request, 1 after an error."""
    options = _parse(arguments)
    if PARENT_VARIABLE in os.environ:
        die_with_parent()
    show_stacks_on_request()
    threading.excepthook = _show_exception
    world = World.join()
    run: RunDir | None = None
    heartbeat: _Heartbeat | None = None
    try:
        set_umask()
        if options.run_dir:
            run = RunDir(Path(options.run_dir).absolute())
        else:
            run = world.from_main(lambda: _make_run(options, world.size))
        config = load_config(read_config_text(run.config_file), source=str(run.config_file))
        if options.cfg and world.is_main:
            heartbeat = _Heartbeat(run, config)
        if config.run.nproc != world.size:
            config = with_changes(config, run={"nproc": world.size})
        from grpo_train.train.loop import train

        resume_collection()
        total = config.run.total_steps
        reached = train(run, config, world, until=min(options.until or total, total), ckpt=options.ckpt)
        if heartbeat is not None:
            heartbeat.end(state="finished" if reached >= total else "stopped", exit_code=0)
        world.leave()
        return 0
    except BaseException as error:
        report = failure_report(error, world.rank)
        print(report["traceback"] or f"error: {report['message']}", file=sys.stderr, flush=True)
        if run is not None:
            _write_report(run, report)
        if heartbeat is not None:
            state = "killed" if isinstance(error, KeyboardInterrupt) else "crashed"
            heartbeat.end(state=state, exit_code=1, error={"summary": report["message"], **report})
        return 1


def failure_report(error: BaseException, rank: int) -> dict[str, Any]:
    """What the supervisor and ``status.json`` get about a failure. An expected one has no traceback."""
    code, details = code_of(error), ""
    if isinstance(error, UserError):
        message = str(error)
    elif failure := disk_error(error):
        message = (
            f"cannot write {failure.filename or 'the logs'}: {disk_reason(failure)}. Earlier checkpoints are intact; "
            f"{disk_fix(failure)}, then resume"
        )
    else:
        message = blame(error) or f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(error))
    return {"rank": rank, "time": utc_now(), "code": code, "message": message, "traceback": details}


def _show_exception(thread: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, unless its disk failed: the main thread raises what TensorBoard's met."""
    if not disk_error(thread.exc_value):
        threading.__excepthook__(thread)


class _Heartbeat:
    """Keeps ``status.json`` of a run without a supervisor fresh, on a thread of rank 0."""

    def __init__(self, run: RunDir, config: Config) -> None:
        from grpo_train.policy.loading import device_name, pick_device

        fixed = {
            "device": device_name(pick_device(config.model.device)),
            "total_steps": config.run.total_steps,
            "nproc": config.run.nproc,
            "restarts": 0,
        }
        self._status = StatusWriter(run.path, **fixed)
        self._status.update(state="running", stage="train", started_at=utc_now(), exit_code=None, error=None)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="status", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with suppress(OSError):  # a full disk must not end the run
                self._status.update()

    def end(self, **fields: Any) -> None:
        """Write the final state."""
        self._ended.set()
        self._thread.join()
        self._status.update(stage="", **fields)
        self._status.close()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m grpo_train.train", description="Run one training process.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--cfg", help="Config file of a new run")
    source.add_argument("--run-dir", help="Directory of an existing run (passed by the supervisor)")
    parser.add_argument(
        "--ckpt",
        type=lambda text: Path(text).expanduser().absolute(),
        help="Starting weights: directory of a peft adapter or a full model",
    )
    parser.add_argument("--until", type=int, help="Last step (default: run.total_steps)")
    parser.add_argument("--root", help="Root directory of runs (default: LOCALFS_ROOT, else /lambda/nfs/localfs)")
    parser.add_argument("--run-name", help="Name of the new run")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="Override one key")
    return parser.parse_args(arguments)


def _make_run(options: argparse.Namespace, nproc: int) -> RunDir:
    """Make a new run from ``--cfg``, with its ``config.yaml``."""
    overrides = [*options.set, f"run.nproc={nproc}"]
    root = resolve_root(options.root)
    run, config = make_run(Path(options.cfg), overrides, options.ckpt, root, options.run_name, nproc)
    atomic_write(run.config_file, dump_config(config))
    return run


def _write_report(run: RunDir, report: dict[str, Any]) -> None:
    """Leave the failure report where the supervisor finds it."""
    node = f".{name}" if (name := os.environ.get(NODE_VARIABLE)) else ""
    file = run.path / "control" / f"error_rank{report['rank']}{node}.json"
    with suppress(OSError):  # a disk that became read-only; the console has the report, too
        write_from_reserve(run.path, lambda: atomic_write(file, json.dumps(report) + "\n"))
