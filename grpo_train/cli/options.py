"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Root = Annotated[
    Path | None, typer.Option(help="Directory of all runs (default: LOCALFS_ROOT, else /lambda/nfs/localfs).")
]
TrainingRun = Annotated[str, typer.Option(help="Run name (see grpo-train runs) or path.")]
RunArgument = Annotated[str, typer.Argument(help="Run name (see grpo-train runs) or path.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Override a config key (repeatable).")
]
