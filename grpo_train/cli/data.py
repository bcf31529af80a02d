"""``grpo-train check-dataset``: check the data of a task before training on it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from grpo_train.cli.options import AsJson, Overrides, Root
from grpo_train.cli.output import fail
from grpo_train.config import load_config, read_config_text, with_changes
from grpo_train.config.schema import Config, TaskConfig
from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.errors import did_you_mean, prefixed
from grpo_train.tasks import Problem
from grpo_train.tasks.check import CHECKS, DatasetCheck, DatasetReport, PromptReader
from grpo_train.tasks.check_lines import report_lines
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
        str | None, typer.Option(help=f"Grader: {', '.join(GRADERS)}, or your own file.py:function (data).")
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
    fields = {"prompt_field": prompt_field, "answer_field": answer_field, "template_field": template_field}
    given = {**fields, "grader": grader, "path": path}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    parts = {part.part_label: part for part in config.task.parts}
    backbone = model or (config.model.backbone if cfg else None)

    def request() -> DatasetCheck:
        reader = _reader(backbone, resolve_root(root)) if backbone else None
        return DatasetCheck(reader, config.rollout.max_prompt_length, tuple(reward or ()))

    if parts and dataset is None:
        if changes:
            option = next(iter(changes)).replace("_", "-")
            fail(f"{cfg} trains a mixture: name the task that --{option} is for ({', '.join(parts)})", 2)
        _check_parts(config, request(), as_json=as_json)
    if dataset in parts:
        config = _of_part(config, parts[dataset])
        dataset = config.task.name if config.task.name in CHECKS else None
    elif parts:
        changes["parts"] = []
    if dataset is not None and dataset not in CHECKS and _is_path(dataset):
        changes = {"name": "data", "path": dataset, **changes}
    elif dataset is not None:
        changes = {"name": dataset, **({"path": None} if dataset != config.task.name else {}), **changes}
    elif cfg is None:
        fail("name a task, a file or hf:OWNER/NAME, or a config with --cfg", 2)
    config = with_changes(config, task=changes)
    name = config.task.name
    if name not in CHECKS:
        fail(f"unknown dataset '{name}'; {did_you_mean(name, CHECKS)}", 2)
    report = _report(config, request())
    if as_json:
        print(json.dumps(_record(report), indent=1))
    else:
        print("\n".join(report_lines(report)))
    raise typer.Exit(0 if report.is_good else 1)


def _check_parts(config: Config, request: DatasetCheck, *, as_json: bool) -> NoReturn:
    """Check every task of a mixture, print each under its label, and exit."""
    reports: dict[str, DatasetReport | None] = {}
    for index, part in enumerate(config.task.parts):
        label = part.part_label
        with prefixed(f"task[{index}] {label}: "):
            reports[label] = _report(_of_part(config, part), request) if part.name in CHECKS else None
        if not as_json:
            report = reports[label]
            lines = report_lines(report) if report else [f"{part.name}: not checked (only {', '.join(CHECKS)} are)"]
            print("\n".join([*([""] if index else []), f"task[{index}] {label}", *lines]), flush=True)
    is_good = all(report is None or report.is_good for report in reports.values())
    if as_json:
        tasks = {label: report and _record(report) for label, report in reports.items()}
        print(json.dumps({"tasks": tasks, "is_good": is_good}, indent=1))
    raise typer.Exit(0 if is_good else 1)


def _of_part(config: Config, part: TaskConfig) -> Config:
    """The config with one task of its mixture alone."""
    return with_changes(config, task={**part.model_dump(), "parts": []})


def _report(config: Config, request: DatasetCheck) -> DatasetReport:
    """Check the data of ``config.task``. Raises TaskError."""
    path = config.task.path
    if path is not None:
        path = pinned_path(path) if is_hub_path(path) else str(Path(path).expanduser())
    return CHECKS[config.task.name](config.task.model_copy(update={"path": path}), request)


def _record(report: DatasetReport) -> dict[str, Any]:
    return {**asdict(report), "rows": report.rows, "right": report.right, "is_good": report.is_good}


def _is_path(dataset: str) -> bool:
    return is_hub_path(dataset) or os.sep in dataset or Path(dataset).exists()


def _reader(backbone: str, root: Path) -> PromptReader:
    from grpo_train.policy.tokenizer import load_tokenizer
    from grpo_train.rollout.chat import prompt_text
    from grpo_train.rollout.prompts import encode_prompts

    tokenizer = load_tokenizer(backbone, root)

    class Model:
        def lengths(self, problems: Sequence[Problem]) -> list[int]:
            return [len(ids) for ids in encode_prompts(problems, tokenizer)]

        def text(self, problem: Problem) -> str:
            return prompt_text(problem, tokenizer)

    return Model()
