"""``grpo-train track``: send a run to Weights & Biases, at any time and as often as needed."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from grpo_train.cli.options import Root, TrainingRun
from grpo_train.cli.output import fail
from grpo_train.config import load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, RunDirError, open_run, resolve_root
from grpo_train.run_dir.credentials import netrc_password


class Mode(str, Enum):
    """How a run is sent."""

    online = "online"
    offline = "offline"


def track(
    training_run: TrainingRun,
    mode: Annotated[Mode, typer.Option(help="Send it now, or write files for wandb sync.")] = Mode.online,
    source: Annotated[
        str | None, typer.Option("--from", help="Send it from its backup in this destination, without restoring it.")
    ] = None,
    root: Root = None,
) -> None:
    """Send a run to Weights & Biases from its logs; rerun the command to send what is missing.

    Each resume from an earlier step is a W&B run beside the first one, in the same group.
    """
    from grpo_train.tracking.wandb.settings import check, has_key, server

    check(mode.value)
    if mode is Mode.online and not has_key():
        problem = netrc_password(urlsplit(server()).hostname or "")[1]
        reason = f" ({problem})" if problem else ""
        fail(f"no API key for {server()}{reason}: run 'wandb login', or set WANDB_API_KEY in .env", 2)
    folder = resolve_root(root)
    if source is not None:
        _track_backup(folder, training_run, source, mode)
        return
    try:
        run = open_run(folder, training_run)
    except RunDirError as error:
        if error.code == "no_run":
            fail(f"{error}; to send a run from its backup, add --from DESTINATION", 2)
        raise
    run.launched()  # W&B's id of the run is made from it
    _send(run, mode, run.observed_state().state, run.path)


def _track_backup(folder: Path, name: str, source: str, mode: Mode) -> None:
    """Send a run as its newest snapshot has it. Raises UserError."""
    from grpo_train.backup.peek import look, newest_manifest, runs_in
    from grpo_train.backup.restore import find_home
    from grpo_train.backup.snapshot import RUNS
    from grpo_train.cli.transfer import failing, opened

    with failing(as_json=False):
        to = opened(source, folder, write=False)
        named = runs_in(to.store, name)
        home = named[0] if len(named) == 1 else find_home(to.store, name, RUNS)
        snapshot = newest_manifest(to.store, home)
        if snapshot is None:
            fail(f"{home.name} has no complete snapshot in {to.name}; see  grpo-train list-backups --from {to.name}")
        with look(to.store, home, snapshot) as found:
            print(f"{home.name}: snapshot {snapshot.number} of {snapshot.time[:16]} in {to.name}", flush=True)
            problems = list(found.problems)
            if _read_config(found.run).tracking.wandb_completions:
                problems.append("completions are not sent from a backup: restore the run, then track it")
            for problem in problems:
                print(f"warning: {problem}", file=sys.stderr)
            # Online, W&B needs its files only until all is sent; offline files are what the command is for.
            _send(found.run, mode, found.state, found.run.path if mode is Mode.online else Path.cwd())
        if problems:
            raise typer.Exit(3)


def _read_config(run: RunDir) -> Config:
    if not run.config_file.exists():
        fail(f"{run.name} has no config.yaml because it never started", 2)
    return load_config(read_config_text(run.config_file), source=str(run.config_file))


def _send(run: RunDir, mode: Mode, state: str, folder: Path) -> None:
    """Send every generation of a run; ``folder`` gets W&B's own files."""
    from grpo_train.tracking.wandb.rows import generations
    from grpo_train.tracking.wandb.settings import server, settings_of
    from grpo_train.tracking.wandb.sidecar import only_one

    settings = settings_of(_read_config(run), run.name, mode=mode.value)
    with only_one(run):
        from grpo_train.tracking.wandb.session import WandbSession

        for generation in generations(event for _, event in run.events()):
            try:
                session = WandbSession(run, settings, generation, folder)
                count = session.feed()
                session.finish("superseded" if generation.end is not None else state)
            except Exception as error:  # whatever W&B raises
                fail(f"{server()}: {' '.join(str(error).split())[:300]}")
            where = session.url or shlex.join(["wandb", "sync", str(session.folder)])
            print(f"{count} entries sent  {where}" if session.url else f"{count} entries written; {where}", flush=True)
