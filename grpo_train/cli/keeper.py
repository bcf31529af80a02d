"""``grpo-train keeper``: resume runs that a reboot or a killed supervisor left behind."""

from __future__ import annotations

from typing import Annotated

import typer

from grpo_train.cli.options import Root
from grpo_train.cli.output import fail
from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.errors import exiting_on_error


def keeper(
    install: Annotated[bool, typer.Option("--install", help="Run the keeper at boot and every two minutes.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove the keeper.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Resume the lost runs now.")] = False,
    root: Root = None,
) -> None:
    """Resume lost runs of this machine that have run.auto_resume, in their tmux sessions."""
    from grpo_train.supervisor import keeper_unit
    from grpo_train.supervisor.keeper import keep

    if install + uninstall + once != 1:
        fail("exactly one of --install, --uninstall and --once is required", 2)
    folder = resolve_root(root)
    with exiting_on_error():
        if not once:
            lines = keeper_unit.install(folder) if install else keeper_unit.uninstall(folder)
            print("\n".join(lines))
            return
        kept = keep(folder)
    for run in kept:
        print(f"{run.run}: {run.state}{f' ({run.reason})' if run.reason else ''}", flush=True)
    raise typer.Exit(1 if any(run.state == "failed" for run in kept) else 0)
