"""Actions that open a form: launch, evaluate, resume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.configs import config_folder, list_configs, read_config
from grpo_train.run_dir.errors import UserError
from grpo_tui import demo
from grpo_tui.actions.action import Face
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.forms.launch import ConfigChoice

FIRST_CONFIG = "testconfig.yaml"
"""Preselected in the launch form: the config that checks a new box within minutes."""


async def launch(face: Face) -> None:
    """Launch a run from a config."""
    from grpo_tui.forms.launch import LaunchScreen

    configs = await _configs(face)
    runs = [row.name for row in face.store.runs or ()]
    preferred = demo.CONFIG if face.options.demo else FIRST_CONFIG
    form = LaunchScreen(face.ask, face.store.box, configs, runs, preferred, one_key=face.options.demo)
    reply = await face.show_dialog(form)
    if reply is not None:
        run = str(reply.get("run", ""))
        face.select_when_listed(run)
        known = reply.get("started") is False
        _receipt(face, f"{run} was already launched" if known else f"{run} launched", reply)


async def _configs(face: Face) -> list[ConfigChoice]:
    """Configs of this machine, then those of the box unless they are the same files."""
    from grpo_tui.forms.launch import ConfigChoice

    folder, here = await asyncio.to_thread(_local_configs, face.options.config_dir)
    try:
        reply = await face.ask("list_configs", timeout=10.0)
    except RemoteError:
        reply = {}
    on_box = [ConfigChoice(str(config["name"]), on_box=True) for config in reply.get("configs") or ()]
    if face.connection.box.is_local and folder is not None and reply.get("folder") == str(folder):
        on_box = []
    return [ConfigChoice(name, on_box=False, text=text) for name, text in here] + on_box


def _local_configs(explicit: Path | None) -> tuple[Path | None, list[tuple[str, str]]]:
    """The config folder of this machine (None without one), and name and text of each config in it."""
    try:
        folder = config_folder(explicit)
        return folder, [(config["name"], read_config(folder, config["name"])) for config in list_configs(folder)]
    except (OSError, UserError):
        return None, []


async def evaluate(face: Face) -> None:
    """Evaluate checkpoints of the selected run."""
    from grpo_tui.forms.evaluate import EvalScreen

    run = face.store.selected
    if run and (steps := await _complete_steps(face, run)):
        reply = await face.show_dialog(EvalScreen(face.ask, run, steps))
        if reply is not None:
            _receipt(face, "evaluation started", reply)


async def resume(face: Face) -> None:
    """Resume the selected run from a checkpoint."""
    from grpo_tui.forms.resume import ResumeScreen

    row = face.store.run
    if row and (steps := await _complete_steps(face, row.name)):
        reply = await face.show_dialog(ResumeScreen(face.ask, row, steps, face.store.step))
        if reply is not None:
            _receipt(face, f"{row.name} resumes from step {reply.get('step', '?')}", reply)


async def _complete_steps(face: Face, run: str) -> list[int]:
    """Steps of the complete checkpoints of a run, requested again. Notifies the user if there are none."""
    try:
        reply = await face.ask("show_run", run=run)
    except RemoteError as error:
        face.show_error(f"cannot read {run}", error)
        return []
    face.store.show(run, reply)
    steps = sorted(view.step for view in face.store.checkpoints() if view.is_complete)
    if not steps:
        face.warn(f"{run} has no complete checkpoint")
    return steps


def _receipt(face: Face, title: str, reply: dict[str, Any]) -> None:
    session = reply.get("session")
    face.receipt(title, f"in tmux session {session}" if session else "")
