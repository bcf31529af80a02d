"""The options of the shell's commands: those that name a box, and those of each command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from grpo_train.run_dir.configs import config_folder, list_configs, read_config
from grpo_train.run_dir.errors import UserError, did_you_mean
from remote.protocol.check import hints_of
from remote.protocol.copies import NOW, THEN
from remote.protocol.jobs import EvaluateRequest

USAGE_ERRORS = frozenset(
    (
        "bad_config", "provider_key", "bad_request", "bad_name", "no_run", "no_checkpoint", "no_file", "exists",
        "no_config", "no_log", "no_session", "no_terminal", "not_confirmed", "secret",
        "bad_model", "no_model", "bad_checkpoint", "bad_task", "no_dataset", "gated", "no_sandbox", "no_gpu",
        "no_memory", "no_wandb", "no_tensorboard", "no_destination", "bad_destination",
    )
)  # fmt: skip
"""Codes of errors that another command line or config avoids: exit code 2, as ``grpo-train`` has for them."""


def add_box_options(options: argparse.ArgumentParser) -> None:
    """``--box``, ``--host``, ``--root``, ``--boxes``."""
    options.add_argument("--box", metavar="NAME", help="box from boxes.yaml, or 'local' for this machine")
    options.add_argument("--host", metavar="ADDRESS", help="address of the box, overriding boxes.yaml")
    options.add_argument("--root", metavar="DIR", help="directory for runs on the box")
    options.add_argument("--boxes", metavar="FILE", help="boxes.yaml to use")
    options.set_defaults(fresh=False)


def exit_code(code: str) -> int:
    """Exit code of a failed command, from the code of its error."""
    return 2 if code in USAGE_ERRORS else 1


EXIT_CODES = "Exit codes: 0 done, 1 failed (the box refused or was not reached), 2 usage error, 130 ended by Ctrl-C."
SYNC_CODES = f"{EXIT_CODES[:-1]}, 3 done except for what is named."
DOCTOR_CODES = "Exit codes: 0 all green, 1 something is yellow, 2 something is red, or a usage error."
HELP = {
    "boxes": "Show every box of boxes.yaml: its live runs, free GPUs and price, and how long it has been idle.",
    "instances": "List the instances of the providers in boxes.yaml: type, region, state, address and price.",
    "doctor": "Check whether a box is ready, and print the command that fixes what is not.",
    "env": "Put a .env with secrets on a box, where every job reads it, or set up the engine of its checkout.",
    "up": "From a bare box to the first step: bring the code of your checkout, set the engine up, launch a config.",
    "sync": "Bring the commit of your checkout to a box: the next launch trains with it, running jobs keep theirs.",
    "runs": "List the runs of a box, newest first.",
    "show": "Show a run: its state, error, checkpoints and evaluations.",
    "tail": "Print the end of a log of a run.",
    "gpu": "Show the GPUs of a box and what runs on them.",
    "sessions": "List the tmux sessions of a box.",
    "capture": "Print the last lines of a tmux session.",
    "tensorboard": "Show a run in TensorBoard on this machine, until Ctrl-C.",
    "attach": "Attach this terminal to a tmux session, or to that of a run.",
    "launch": "Launch a run of a config of this machine.",
    "resume": "Resume a run from one of its checkpoints.",
    "eval": "Evaluate checkpoints of a run.",
    "stop": "Stop a run after its current step, saved.",
    "kill": "Kill a run or an evaluation now, without saving.",
}
CHANGES = ("up", "launch", "resume", "eval", "stop", "kill")
_NOT_OPTIONS = ("run", "steps", "ckpt_path", "dry_run", "idempotency_key", "recall", "why")
"""Fields of an evaluation's request that are not options of the same name."""


def parser(command: str) -> argparse.ArgumentParser:
    """The options of a command."""
    options = argparse.ArgumentParser(
        prog=f"grpo-tui {command}",
        description=HELP[command],
        epilog={"doctor": DOCTOR_CODES, "sync": SYNC_CODES, "up": SYNC_CODES}.get(command, EXIT_CODES),
    )
    if command in _OPTIONS:
        _OPTIONS[command](options)
    if command in CHANGES:
        options.add_argument(
            "--key", default="", help="idempotency key: a repeated command with the same key is carried out once"
        )
    if command in ("boxes", "instances"):
        options.add_argument("--boxes", metavar="FILE", help="boxes.yaml to use")
    else:
        add_box_options(options)
        options.add_argument("--readonly", action="store_true", help="change nothing on the box")
    options.add_argument("--json", action="store_true", help="print JSON")
    return options


def config_of(arguments: argparse.Namespace) -> tuple[str, str, list[str]]:
    """Name, text and overrides of the config of a command, validated. Raises UserError (``no_config``, ``bad_config``)

    A name without a file is looked up among the training configs, as in the app.
    """
    from grpo_train.config import load_config

    path = Path(arguments.cfg).expanduser()
    if path.is_file():
        name = path.name
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot read: {error}", code="no_config") from error
    else:
        folder = config_folder(None)
        known = [config["name"] for config in list_configs(folder)]
        name = next((each for each in known if each in (arguments.cfg, f"{arguments.cfg}.yaml")), "")
        if not name:
            hint = did_you_mean(arguments.cfg, known)
            message = f"{arguments.cfg}: no such file, and no config of this name in {folder}; {hint}"
            raise UserError(message, code="no_config")
        text = read_config(folder, name)
    overrides = list(arguments.set or [])
    load_config(text, overrides, str(path) if path.is_file() else f"config/{name}")
    return f"config/{name}", text, overrides


def _set(options: argparse.ArgumentParser) -> None:
    options.add_argument("--set", action="append", metavar="SECTION.KEY=VALUE", help="override of the config")


def _count(options: argparse.ArgumentParser, name: str, text: str) -> None:
    options.add_argument(name, type=int, metavar="N", help=text)


def _dry_run(options: argparse.ArgumentParser) -> None:
    options.add_argument("--dry-run", action="store_true", help="check and print the command; start nothing")


def _doctor(options: argparse.ArgumentParser) -> None:
    options.add_argument("--cfg", metavar="CFG", help="also check the space for the checkpoints of this config")
    _set(options)


def _env(options: argparse.ArgumentParser) -> None:
    options.add_argument("action", choices=("put", "setup"), help="put: send FILE; setup: install what is missing")
    options.add_argument("file", metavar="FILE", nargs="?", default="", help="put: file of variables (default: .env)")
    _dry_run(options)


def _up(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "cfg", metavar="CFG", nargs="?", default="demo", help="config file, or the name of an example (default: demo)"
    )
    _sync(options)
    _launch_options(options)


def _sync(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--with-changes", action="store_true", help="take along what is not committed, as a patch that each run keeps"
    )


def _run(options: argparse.ArgumentParser) -> None:
    options.add_argument("run", metavar="RUN", help="name of the run")


def _tensorboard(options: argparse.ArgumentParser) -> None:
    _run(options)
    options.add_argument(
        "--port", type=int, metavar="N", help="port of this machine (default: 16007, or the next free)"
    )
    options.add_argument("--open", action="store_true", help="open it in the browser")


def _tail(options: argparse.ArgumentParser) -> None:
    _run(options)
    options.add_argument("file", metavar="FILE", nargs="?", default="console", help="log of the run (default: console)")
    options.add_argument("--lines", "-n", type=int, metavar="N", default=20, help="number of lines (default: 20)")
    options.add_argument("--follow", "-f", action="store_true", help="print what is added, until Ctrl-C")


def _session(options: argparse.ArgumentParser) -> None:
    options.add_argument("session", metavar="SESSION", help="name of the session, or of a run")


def _capture(options: argparse.ArgumentParser) -> None:
    _session(options)
    options.add_argument("--lines", "-n", type=int, metavar="N", default=200, help="number of lines (default: 200)")


def _launch(options: argparse.ArgumentParser) -> None:
    options.add_argument("cfg", metavar="CFG", help="config file of this machine, or the name of an example config")
    _launch_options(options)
    _dry_run(options)


def _launch_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--ckpt", default="", metavar="DIR", help="starting weights on the box")
    options.add_argument("--run-name", default="", metavar="NAME", help="name of the run (default: the time)")
    _count(options, "--nproc", "number of processes (default: run.nproc)")
    words = "what the job asks for, in place of 'slurm' in boxes.yaml (repeatable), such as time=2:00:00"
    options.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help=words)
    _set(options)


def _resume(options: argparse.ArgumentParser) -> None:
    _run(options)
    options.add_argument("--from-step", default="latest", metavar="STEP", help="a step, or latest (default)")
    _count(options, "--additional-steps", "number of additional steps")
    _count(options, "--nproc", "number of processes")
    options.add_argument(
        "--code", default="", choices=(THEN, NOW), help="where the synced code differs: that of the run, or the synced"
    )
    _set(options)
    _dry_run(options)


def _eval(options: argparse.ArgumentParser) -> None:
    options.add_argument("run", metavar="RUN", nargs="?", default="", help="name of the run")
    options.add_argument("--steps", default="", help="steps separated by commas, latest or all (default)")
    options.add_argument("--ckpt-path", default="", metavar="DIR", help="a checkpoint on the box in place of a run")
    for field in fields(EvaluateRequest):
        if field.name not in _NOT_OPTIONS:
            kind = _kind_of(hints_of(EvaluateRequest)[field.name])
            name = f"--{field.name.replace('_', '-')}"
            options.add_argument(name, type=kind, help="as in  grpo-train eval", metavar=kind.__name__.upper())
    _dry_run(options)


def _kind_of(hint: Any) -> type:
    """The type of an option: that of the field without None."""
    return next((kind for kind in (int, float) if f"{kind.__name__}" in str(hint)), str)


def _kill(options: argparse.ArgumentParser) -> None:
    options.add_argument("run", metavar="RUN", nargs="?", default="", help="name of the run")
    options.add_argument("--session", default="", metavar="NAME", help="session of an evaluation, in place of a run")
    options.add_argument("--yes", action="store_true", help="do not ask; required without a terminal")


_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "doctor": _doctor, "env": _env, "up": _up, "sync": _sync,
    "show": _run, "tail": _tail, "tensorboard": _tensorboard, "capture": _capture, "attach": _session,
    "launch": _launch, "resume": _resume, "eval": _eval, "stop": _run, "kill": _kill,
}  # fmt: skip
