"""``grpo-train``: the command line of the engine, one file per command group. No torch in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from dotenv import load_dotenv

from grpo_train.cli import data, evaluate, look, make, train
from grpo_train.run_dir.version import FORMAT, VERSION

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train language models by reinforcement learning on this machine.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage error, 130 ended by a second Ctrl-C.",
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


for group in (train, evaluate, look, data, make):
    group.register(app)


def main() -> None:
    """Entry point of the console script. Unset variables are read from ``.env`` in the working directory."""
    load_dotenv(Path(".env"))
    try:
        app()
    except OSError as error:  # a full disk, a file system that turned read-only
        print(f"error: {error.filename or 'input/output'}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(1) from None
