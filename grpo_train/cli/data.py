"""``grpo-train check-dataset``: check the data of a task before training on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.cli.options import AsJson
from grpo_train.cli.output import fail
from grpo_train.config import schema
from grpo_train.run_dir.suggest import did_you_mean
from grpo_train.tasks.check import CHECKS, lines_of
from grpo_train.tasks.shared.graders import GRADERS


def check_dataset(
    dataset: Annotated[str, typer.Argument(help=f"Dataset: {', '.join(CHECKS)}.")],
    path: Annotated[str | None, typer.Option(help="File or directory, as task.path (default: the hub).")] = None,
    prompt_field: Annotated[str, typer.Option(help="Field of the question (jsonl).")] = "prompt",
    answer_field: Annotated[str, typer.Option(help="Field of the gold answer (jsonl).")] = "answer",
    template_field: Annotated[str, typer.Option(help="Field of a row's own template (jsonl).")] = "template",
    grader: Annotated[
        str, typer.Option(help=f"Grader: {', '.join(GRADERS)}, or your own module:function (jsonl).")
    ] = "number",
    as_json: AsJson = False,
) -> None:
    """Check a dataset: rows, reference answers, duplicates, overlaps between splits."""
    if dataset not in CHECKS:
        fail(f"unknown dataset '{dataset}'; {did_you_mean(dataset, CHECKS)}", 2)
    config = schema.Task(
        name=dataset,
        path=str(Path(path).expanduser()) if path else None,
        prompt_field=prompt_field,
        answer_field=answer_field,
        template_field=template_field,
        grader=grader,
    )
    report = CHECKS[dataset](config)
    if as_json:
        totals = {"rows": report.rows, "right": report.right, "is_good": report.is_good}
        print(json.dumps({**asdict(report), **totals}, indent=1))
    else:
        print("\n".join(lines_of(report)))
    raise typer.Exit(0 if report.is_good else 1)
