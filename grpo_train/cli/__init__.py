"""``grpo-train``: the command line of the engine, one file per command group, imported when one of its commands runs.
No torch in this process."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from grpo_train.cli.output import fail
from grpo_train.config.environment import load_environment
from grpo_train.run_dir.errors import UserError, disk_error, message_of, no_engine
from grpo_train.run_dir.garbage import end_at_once, pause_collection, resume_collection
from grpo_train.run_dir.machine import set_umask
from grpo_train.run_dir.safe_json import left_out
from grpo_train.run_dir.version import FORMAT, VERSION

__all__ = ["app", "main"]

HIDDEN = ""
"""Heading of the commands that the help does not list."""
COMMANDS: dict[str, dict[str, str]] = {
    "Train": {
        "train": "train.train",
        "plan": "plan.plan",
        "resume": "train.resume",
        "stop": "train.stop",
        "join": "train.join",
        "sweep": "train.sweep",
        "keeper": "keeper.keeper",
    },
    HIDDEN: {
        "supervise": "train.supervise",
        "check-launch": "train.check_launch",
    },
    "Evaluate": {
        "eval": "evaluate.evaluate",
        "generate": "generate.generate",
        "regrade": "evaluate.regrade",
        "compare": "evaluate.compare",
    },
    "Inspect": {
        "runs": "look.runs",
        "show": "look.show",
        "report": "report.report",
        "tensorboard": "tensorboard.tensorboard",
        "history": "history.history",
        "usage": "usage.usage",
        "track": "track.track",
        "tasks": "look.tasks",
        "device": "look.device",
        "platform": "platform.platform",
        "env": "environment.env",
        "fit": "fit.fit",
        "bench": "bench.bench",
        "selftest": "selftest.selftest",
    },
    "Back up": {
        "backup": "backup.backup",
        "backup-all": "backup.backup_all",
        "list-backups": "backup.list_",
        "destinations": "destinations.destinations",
        "verify-backup": "backup.verify_backup",
        "restore": "backup.restore",
        "cleanup": "tidy.cleanup",
        "archive": "tidy.archive",
        "clean": "clean.clean",
        "prune-backups": "tidy.prune_backups",
        "fetch": "tidy.fetch_",
        "safe-to-terminate": "tidy.safe",
    },
    "Data": {
        "check-dataset": "data.check_dataset",
    },
    "Create": {
        "export": "export.export",
        "tiny-model": "make.tiny_model",
        "fetch-model": "make.fetch_model",
        "init": "make.init",
        "import-config": "make.import_config",
        "schema": "make.schema",
    },
    "Shell": {
        "completion": "completion.completion",
    },
}
"""By the heading of their help: each command's name, and the module and function that run it. A module is imported when
one of its commands runs, or for the help of all of them."""
PLACES = {name: (place, panel) for panel, places in COMMANDS.items() for name, place in places.items()}


class LazyCommands(TyperGroup):
    """Commands that are imported when they run. A UserError that one does not handle is a usage error, as is a library
    that is not installed. The files that one left out are named at its end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands: Any = dict.fromkeys(PLACES)  # names, for suggestions

    def list_commands(self, ctx: Any) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name) if cmd_name in PLACES else None

    def invoke(self, ctx: Any) -> Any:
        left_out.clear()
        try:
            return super().invoke(ctx)
        except UserError as error:
            fail(error, 2)
        except ModuleNotFoundError as error:
            library = (error.name or "").partition(".")[0]
            if library in ("", "grpo_train") or library in sys.stdlib_module_names:
                raise
            fail(no_engine(library), 2)
        finally:
            for path, reason in left_out.items():
                print(f"warning: {path} is left out: {reason}", file=sys.stderr)


@cache
def _command(name: str) -> Any:
    place, panel = PLACES[name]
    module_name, _, function = place.partition(".")
    module = import_module(f"grpo_train.cli.{module_name}")
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    command = single.command(
        name, rich_help_panel=panel or None, hidden=panel == HIDDEN, epilog=getattr(module, "EPILOG", None)
    )
    command(getattr(module, function))
    made = typer.main.get_command(single)
    resume_collection()
    return made


app = typer.Typer(
    cls=LazyCommands,
    help="Train language models by reinforcement learning on this machine.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage error, 3 done except for what is named (backups, import-config), "
    "130 ended by a second Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"grpo-train {VERSION} (format {FORMAT})")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Entry point of the console script."""
    pause_collection()
    if "_ARGCOMPLETE" in os.environ:
        visible = {name: place for name, (place, panel) in PLACES.items() if panel != HIDDEN}
        import_module("grpo_train.cli.completion").complete(app, visible)
    end_at_once(_run())


def _run() -> int:
    """Run the command that was asked for; returns its exit code."""
    load_environment()
    try:
        set_umask()
        app()
    except SystemExit as end:
        return int(end.code or 0)
    except UserError as error:  # of set_umask; commands handle theirs
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if not isinstance(error, OSError) and not disk_error(error):
            raise
        print(f"error: {message_of(error)}", file=sys.stderr)
        return 1
    return 0
