"""``grpo-train``: the command line of the engine, one file per command group. No torch in this process."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grpo_train.cli import (
    backup,
    bench,
    clean,
    data,
    destinations,
    environment,
    evaluate,
    export,
    fit,
    generate,
    history,
    keeper,
    look,
    make,
    plan,
    platform,
    report,
    selftest,
    tensorboard,
    tidy,
    track,
    train,
    usage,
)
from grpo_train.cli.output import fail
from grpo_train.config.environment import load_environment
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.umask import set_umask
from grpo_train.run_dir.version import FORMAT, VERSION

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """A UserError that a command does not handle is a usage error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            fail(error, 2)


app = typer.Typer(
    cls=Commands,
    help="Train language models by reinforcement learning on this machine.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage error, 3 done except for what is named (backups), "
    "130 ended by a second Ctrl-C.",
    no_args_is_help=True,
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


app.command(rich_help_panel="Train")(train.train)
app.command(rich_help_panel="Train")(plan.plan)
app.command(rich_help_panel="Train")(train.resume)
app.command(rich_help_panel="Train")(train.stop)
app.command(rich_help_panel="Train")(train.join)
app.command(rich_help_panel="Train")(train.sweep)
app.command(rich_help_panel="Train")(keeper.keeper)
app.command(hidden=True)(train.supervise)
app.command(hidden=True)(train.check_caches)
app.command("eval", rich_help_panel="Evaluate")(evaluate.evaluate)
app.command(rich_help_panel="Evaluate")(generate.generate)
app.command(rich_help_panel="Evaluate")(evaluate.regrade)
app.command(rich_help_panel="Evaluate")(evaluate.compare)
app.command(rich_help_panel="Inspect")(look.runs)
app.command(rich_help_panel="Inspect")(look.show)
app.command(rich_help_panel="Inspect")(report.report)
app.command(rich_help_panel="Inspect")(tensorboard.tensorboard)
app.command(rich_help_panel="Inspect", epilog=history.EPILOG)(history.history)
app.command(rich_help_panel="Inspect")(usage.usage)
app.command(rich_help_panel="Inspect")(track.track)
app.command(rich_help_panel="Inspect")(look.tasks)
app.command(rich_help_panel="Inspect")(look.device)
app.command(rich_help_panel="Inspect")(platform.platform)
app.command(rich_help_panel="Inspect")(environment.env)
app.command(rich_help_panel="Inspect")(fit.fit)
app.command(rich_help_panel="Inspect")(bench.bench)
app.command(rich_help_panel="Inspect")(selftest.selftest)
app.command(rich_help_panel="Back up")(backup.backup)
app.command("backup-all", rich_help_panel="Back up")(backup.backup_all)
app.command("list-backups", rich_help_panel="Back up")(backup.list_)
app.command(rich_help_panel="Back up")(destinations.destinations)
app.command("verify-backup", rich_help_panel="Back up")(backup.verify_backup)
app.command(rich_help_panel="Back up")(backup.restore)
app.command(rich_help_panel="Back up")(tidy.cleanup)
app.command(rich_help_panel="Back up")(tidy.archive)
app.command(rich_help_panel="Back up")(clean.clean)
app.command("prune-backups", rich_help_panel="Back up")(tidy.prune_backups)
app.command("fetch", rich_help_panel="Back up")(tidy.fetch_)
app.command("safe-to-terminate", rich_help_panel="Back up")(tidy.safe)
app.command(rich_help_panel="Data")(data.check_dataset)
app.command(rich_help_panel="Create")(export.export)
app.command(rich_help_panel="Create")(make.tiny_model)
app.command(rich_help_panel="Create")(make.fetch_model)
app.command(rich_help_panel="Create")(make.init)
app.command(rich_help_panel="Create")(make.schema)


def main() -> None:
    """Entry point of the console script."""
    load_environment()
    try:
        set_umask()
        app()
    except UserError as error:  # of set_umask; commands handle theirs
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # a full disk, a file system that turned read-only
        print(f"error: {error.filename or 'input/output'}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(1) from None
