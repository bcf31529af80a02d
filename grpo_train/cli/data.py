"""``grpo-train check-dataset``: check the data of a task before training on it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_train.cli.options import AsJson, Overrides, Root
from grpo_train.cli.output import fail
from grpo_train.config import load_config, read_config_text, with_changes
from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.suggest import did_you_mean
from grpo_train.tasks import Problem
from grpo_train.tasks.check import CHECKS, Reader, Request
from grpo_train.tasks.check_lines import lines_of
from grpo_train.tasks.shared.graders import GRADERS
from grpo_train.tasks.shared.hub_data import is_hub_path, pinned_path


def check_dataset(
    dataset: Annotated[
        str | None,
        typer.Argument(help=f"Task ({', '.join(CHECKS)}), or a file, a directory or hf:OWNER/NAME as task data."),
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="File, directory or hf:OWNER/NAME, as task.path (default: the hub).")
    ] = None,
    cfg: Annotated[Path | None, typer.Option(help="Config file whose task and model to check.")] = None,
    prompt_field: Annotated[str | None, typer.Option(help="Field of the question (data).")] = None,
    answer_field: Annotated[str | None, typer.Option(help="Field of the gold answer (data).")] = None,
    template_field: Annotated[str | None, typer.Option(help="Field of a row's own template (data).")] = None,
    grader: Annotated[
        str | None, typer.Option(help=f"Grader: {', '.join(GRADERS)}, or your own module:function (data).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokens and chat template to use (default: that of --cfg).")
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(help="Reward function to call on gold answers and empty completions (repeatable)."),
    ] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Check a dataset: rows, gold answers, lengths, duplicates, overlaps between splits, prompts, rewards.

    Exits with 0 if every row can be used and the grader accepts every gold answer, with 1 if not, and with 2 if the
    data cannot be read.
    """
    config = load_config(read_config_text(cfg) if cfg else "", set_ or [], source=str(cfg or "config"))
    if config.task.parts and dataset is None:
        labels = ", ".join(part.part_label for part in config.task.parts)
        fail(f"{cfg} trains a mixture: name one of its tasks ({labels})", 2)
    for part in config.task.parts:
        if part.part_label == dataset:
            config = with_changes(config, task={**part.model_dump(), "parts": []})
            dataset = part.name if part.name in CHECKS else None
    given = {"prompt_field": prompt_field, "answer_field": answer_field, "template_field": template_field}
    task: dict[str, Any] = {key: value for key, value in {**given, "grader": grader}.items() if value is not None}
    if dataset is not None and dataset not in CHECKS and _is_path(dataset):
        task |= {"name": "data", "path": dataset}
    elif dataset is not None:
        task |= {"name": dataset, **({"path": None} if dataset != config.task.name else {})}
    elif cfg is None:
        fail("name a task, a file or hf:OWNER/NAME, or a config with --cfg", 2)
    if path is not None:
        task["path"] = path
    config = with_changes(config, task=task)
    name = config.task.name
    if name not in CHECKS:
        fail(f"unknown dataset '{name}'; {did_you_mean(name, CHECKS)}", 2)
    where = config.task.path
    if where is not None:
        where = pinned_path(where) if is_hub_path(where) else str(Path(where).expanduser())
        config = with_changes(config, task={"path": where})
    backbone = model or (config.model.backbone if cfg else None)
    request = Request(
        _reader(backbone, resolve_root(root)) if backbone else None,
        config.rollout.max_prompt_length,
        tuple(reward or ()),
    )
    report = CHECKS[name](config.task, request)
    if as_json:
        totals = {"rows": report.rows, "right": report.right, "is_good": report.is_good}
        print(json.dumps({**asdict(report), **totals}, indent=1))
    else:
        print("\n".join(lines_of(report)))
    raise typer.Exit(0 if report.is_good else 1)


def _is_path(dataset: str) -> bool:
    return is_hub_path(dataset) or os.sep in dataset or Path(dataset).exists()


def _reader(backbone: str, root: Path) -> Reader:
    from grpo_train.policy.tokenizer import load_tokenizer
    from grpo_train.rollout.chat import chat_text
    from grpo_train.rollout.prompts import encode

    tokenizer = load_tokenizer(backbone, root)

    class Model:
        def lengths(self, problems: Sequence[Problem]) -> list[int]:
            return [len(ids) for ids in encode(problems, tokenizer)]

        def text(self, problem: Problem) -> str:
            return chat_text(problem.messages, tokenizer) if problem.messages else problem.prompt

    return Model()
