"""``grpo-train export``: a checkpoint as a model that loads elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.cli.options import AsJson, Root, TrainingRun
from grpo_train.cli.output import fail
from grpo_train.cli.transfer import size_text
from grpo_train.run_dir.errors import exiting_on_error
from grpo_train.run_dir.files import to_json
from grpo_train.train.preflight import check_engine


class Dtype(str, Enum):
    """Type of exported weights."""

    bfloat16 = "bfloat16"
    float32 = "float32"


def export(
    training_run: TrainingRun,
    step: Annotated[str, typer.Option(help="final, latest or a step number.")] = "final",
    merge: Annotated[bool, typer.Option("--merge", help="Merge an adapter into its base model (in float32).")] = False,
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="Type of the weights (default: an adapter's own; for models bfloat16, or the base's float32)."
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Directory to write (default: ROOT/exports/RUN_step_N).")] = None,
    base: Annotated[
        str | None, typer.Option(help="Base model of an adapter, if the recorded one has moved or is on the hub, too.")
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Upload the export to the hub, unless other weights are there."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the hub repository as a private one.")] = False,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Dollars per hour, for the cost in the model card.")
    ] = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Write a checkpoint as a model that loads elsewhere, with its prompt template and a model card."""
    from grpo_train.export.plan import ExportRequest, plan_export
    from grpo_train.export.push import check_destination
    from grpo_train.export.push import push as upload
    from grpo_train.export.write import existing_export, write_export

    if private and not push:
        fail("--private needs --push", 2)
    check_engine()
    plan = plan_export(ExportRequest(training_run, step, merge, dtype.value if dtype else None, to, base, root))
    commit = None
    with exiting_on_error():
        destination = check_destination(push, private) if push else None
        # A push that failed after the export is repeated without exporting again.
        exported = (existing_export(plan) if destination else None) or write_export(plan, price)
        if destination:
            commit = upload(exported, destination)
    if as_json:
        print(to_json({**asdict(exported), "commit": commit}))
        return
    for name, size in exported.files.items():
        print(f"{size_text(size):>9}  {name}")
    for note in exported.notes:
        print(f"note: {note}")
    print(f"{'wrote' if exported.is_new else 'exported before:'} {exported.folder}")
    if commit:
        print(f"pushed {commit}")
