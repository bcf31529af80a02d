"""``grpo-train track``: send a run to Weights & Biases, at any time and as often as needed."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from grpo_train.cli.options import Root, TrainingRun
from grpo_train.cli.output import fail
from grpo_train.config import load_config
from grpo_train.run_dir import open_run, resolve_root


class Mode(str, Enum):
    """How a run is sent."""

    online = "online"
    offline = "offline"


def track(
    training_run: TrainingRun,
    mode: Annotated[Mode, typer.Option(help="Send it now, or write files for wandb sync.")] = Mode.online,
    root: Root = None,
) -> None:
    """Send a run to Weights & Biases from its logs; rerun the command to send what is missing.

    Each resume from an earlier step is a W&B run beside the first one, in the same group.
    """
    from grpo_train.tracking.wandb.rows import generations
    from grpo_train.tracking.wandb.settings import check, has_key, server, settings_of
    from grpo_train.tracking.wandb.sidecar import only_one

    check(mode.value)
    run = open_run(resolve_root(root), training_run)
    if not run.config_file.exists():
        fail(f"{run.name} has no config.yaml because it never started", 2)
    if mode is Mode.online and not has_key():
        fail(f"no API key for {server()}: run 'wandb login', or set WANDB_API_KEY in .env", 2)
    config = load_config(run.config_file.read_text(encoding="utf-8"), source=str(run.config_file))
    settings = settings_of(config, run.name, mode=mode.value)
    with only_one(run):
        from grpo_train.tracking.wandb.session import Session

        for generation in generations(event for _, event in run.events()):
            try:
                session = Session(run, settings, generation)
                count = session.feed()
                session.finish("superseded" if generation.end is not None else run.observed_state().state)
            except Exception as error:  # whatever W&B raises
                fail(f"{server()}: {' '.join(str(error).split())[:300]}")
            where = session.url or f"wandb sync {session.folder}"
            print(f"{count} entries sent  {where}" if session.url else f"{count} entries written; {where}", flush=True)
