"""Commands that open a form: launch, evaluate, resume, ask."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.configs import config_folder, list_configs, read_config
from grpo_train.run_dir.errors import UserError
from grpo_tui.box.rows import workflow_parts
from grpo_tui.commands.runs import evaluate_marked
from grpo_tui.dialogs import demo
from grpo_tui.kit.desk import Desk, SelectRun
from remote.protocol import RemoteError
from remote.protocol.jobs import JobOptions

if TYPE_CHECKING:
    from grpo_tui.dialogs.launch import ConfigChoice

FIRST_CONFIG = "testconfig.yaml"
"""Preselected in the launch form: the config that checks a new box within minutes."""


async def launch(app: Desk) -> None:
    """Launch a run: choose a config, check the exact command, start it."""
    from grpo_tui.dialogs.launch import LaunchScreen

    configs = await _configs(app)
    runs = [row.name for row in app.store.runs or ()]
    preferred = demo.CONFIG if app.options.demo else FIRST_CONFIG
    box = app.connection.box
    job = JobOptions().changed(box.slurm) if box.scheduler else None
    form = LaunchScreen(app.request, app.store.box, configs, runs, preferred, box.notify, job, app.store.price_per_hour)
    reply = await app.show_dialog(form)
    if reply is not None:
        run = str(reply.get("run", ""))
        app.post_message(SelectRun(run))
        known = reply.get("started") is False
        _receipt(app, f"{run} was already launched" if known else f"{run} launched", reply)


async def _configs(app: Desk) -> list[ConfigChoice]:
    """Configs of this machine, then those of the box unless they are the same files."""
    from grpo_tui.dialogs.launch import ConfigChoice

    folder, here = await asyncio.to_thread(_local_configs, app.options.config_dir)
    try:
        reply = await app.request("list_configs", reply_s=10.0)
    except RemoteError as error:
        if error.code != "no_repo":  # a box without a checkout has none
            app.warn(error.message, "the configs of the box are not listed")
        reply = {}
    on_box = [ConfigChoice(str(config["name"]), on_box=True) for config in reply.get("configs") or ()]
    if app.connection.box.is_local and folder is not None and reply.get("folder") == str(folder):
        on_box = []
    return [ConfigChoice(name, on_box=False, text=text) for name, text in here] + on_box


def _local_configs(explicit: Path | None) -> tuple[Path | None, list[tuple[str, str]]]:
    """The config folder of this machine (None without one), and name and text of each config in it."""
    try:
        folder = config_folder(explicit)
        return folder, [(config["name"], read_config(folder, config["name"])) for config in list_configs(folder)]
    except (OSError, UserError):
        return None, []


async def evaluate(app: Desk) -> None:
    """Evaluate checkpoints of the run, or of all marked ones."""
    if app.situation().marked:
        await evaluate_marked(app)
        return
    from grpo_tui.dialogs.evaluate import EvalScreen

    run = app.store.selected
    if run and (steps := await _complete_steps(app, run)):
        reply = await app.show_dialog(EvalScreen(app.request, run, steps))
        if reply is not None:
            _receipt(app, "evaluation started", reply)


async def resume(app: Desk) -> None:
    """Resume the run from one of its checkpoints."""
    from grpo_tui.dialogs.resume import ResumeScreen

    row = app.store.run
    if row and (steps := await _complete_steps(app, row.name)):
        config_text = str(app.store.shown.get("config_text") or "")
        has_workflow = bool(workflow_parts(app.store.shown.get("workflow") or {}, row))
        form = ResumeScreen(app.request, row, steps, app.store.step, config_text, app.store.box, has_workflow)
        reply = await app.show_dialog(form)
        if reply is not None:
            _receipt(app, f"{row.name} resumes from step {reply.get('step', '?')}", reply)


async def ask(app: Desk) -> None:
    """Ask checkpoints of the run a question, or a held-out problem."""
    from grpo_tui.views.ask.screen import AskScreen

    run = app.store.selected
    if run and (steps := await _complete_steps(app, run)):
        chosen = app.chosen_checkpoint
        await app.show_dialog(AskScreen(run, steps, chosen if chosen in (0, *steps) else steps[-1]))


async def _complete_steps(app: Desk, run: str) -> list[int]:
    """Steps of the complete checkpoints of a run, requested again. Notifies the user if there are none."""
    try:
        reply = await app.request("show_run", run=run)
    except RemoteError as error:
        app.show_error(f"cannot read {run}", error.message, error.hint)
        return []
    app.store.show(run, reply)
    steps = app.store.complete_steps()
    if not steps:
        app.warn(f"{run} has no complete checkpoint")
    return steps


def _receipt(app: Desk, title: str, reply: dict[str, Any]) -> None:
    session = reply.get("session")
    job = f"as SLURM job {reply['job']}" if reply.get("job") else ""
    app.receipt(title, f"in tmux session {session}" if session else job)
