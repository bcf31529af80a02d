"""``grpo-train tensorboard``: a run's curves in TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.cli.options import Root, TrainingRun
from grpo_train.run_dir import open_run, resolve_root
from grpo_train.run_dir.files import atomic_write

IDLE_S = 30.0


def tensorboard(
    training_run: TrainingRun,
    idle: Annotated[float, typer.Option(min=1, help="Seconds without a connection after which it ends.")] = IDLE_S,
    address_file: Annotated[
        Path | None, typer.Option(help="Write port and path there as JSON instead of printing them.")
    ] = None,
    root: Root = None,
) -> None:
    """Show a run in TensorBoard, on this machine's loopback, below a random path that keeps other accounts out.

    It waits five minutes for the first connection, and ends 30 seconds after the last one. `grpo-tui tensorboard`
    starts it on a box and opens it on your machine.
    """
    from grpo_train.tracking.tensorboard import TensorBoardError, serve_events

    run = open_run(resolve_root(root), training_run)
    folder = run.path / "tensorboard"
    if not folder.is_dir():
        raise TensorBoardError(f"{run.name} has no tensorboard/: it was trained with tracking.tensorboard: false")

    def announce(port: int, path: str) -> None:
        if address_file is None:
            print(f"http://127.0.0.1:{port}{path}", flush=True)
            return
        address_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(address_file, json.dumps({"port": port, "path": path}), mode=0o600)
        print(f"{run.name} on port {port}; ends {idle:.0f} s after the last connection", flush=True)

    try:
        serve_events(folder, announce, idle)
    finally:
        if address_file is not None:
            address_file.unlink(missing_ok=True)
