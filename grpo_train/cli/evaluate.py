"""``grpo-train eval``, ``regrade`` and ``compare``: evaluate checkpoints and compare their results."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_train.cli.options import Overrides, Root, TrainingRun
from grpo_train.cli.output import fail, on_terminal, table
from grpo_train.evaluation.baselines import is_baseline
from grpo_train.evaluation.output import EvaluationOutput, TerminalOutput
from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.display import fraction, signed
from grpo_train.run_dir.files import to_json
from grpo_train.train.preflight import check_engine

if TYPE_CHECKING:
    from grpo_train.evaluation.report.compare import StepComparison

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; progress goes to stderr.")]


def evaluate(
    training_run: Annotated[
        str | None, typer.Option(help="Run name or path (optional if --ckpt-path is a step of a run).")
    ] = None,
    steps: Annotated[
        str, typer.Option(help="all, latest, final or step numbers: 0,5,10 (0: the model the run started from).")
    ] = "all",
    model: Annotated[
        str | None,
        typer.Option(help="Model to evaluate without a run: hub ID, OWNER/NAME@COMMIT, or a directory."),
    ] = None,
    eval_dataset: Annotated[
        list[str] | None,
        typer.Option("--eval-dataset", "--dataset", help="Task to evaluate on (default: the run's task; repeatable)."),
    ] = None,
    eval_path: Annotated[
        str | None, typer.Option(help="File or directory of the dataset (default: task.path).")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split: test (default), validation or train.")] = None,
    subset_frac: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Share of the split (seeded, nested subsets).")
    ] = None,
    num_problems: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of problems (seeded, nested subsets).")
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Completions per batch (default: 32); auto fills free memory.")
    ] = None,
    max_completion_length: Annotated[int | None, typer.Option(min=1, help="Generation budget in tokens.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 = greedy (default: the task's: 0, mbpp 0.2).")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling threshold.")] = None,
    num_samples: Annotated[
        int | None, typer.Option(min=1, help="Completions per problem, for pass@k and maj@k.")
    ] = None,
    opponent: Annotated[
        list[str] | None, typer.Option(help="Opponent in a game: a player or a checkpoint directory (repeatable).")
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Number of processes, one per GPU; each takes a share of the problems.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Time limit per step, in seconds.")] = None,
    ckpt_path: Annotated[
        Path | None, typer.Option(help="Checkpoint directory to evaluate instead of the run's steps.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the --ckpt-path or --model results.")] = None,
    base: Annotated[str | None, typer.Option(help="Base model of an adapter, if the recorded one has moved.")] = None,
    cfg: Annotated[
        Path | None, typer.Option(help="Config with the settings of --model (default: those of --training-run).")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Evaluate checkpoints of a run, or any model (--model), in separate processes.

    Completed steps are skipped; rerun the command to continue after an interruption.
    """
    from grpo_train.evaluation.request import EvalRequest
    from grpo_train.evaluation.runner import run_evaluations

    if name is not None and ckpt_path is None and model is None:
        fail("--name needs --ckpt-path or --model", 2)
    if model is None and (cfg or overrides):
        fail("--cfg and --set need --model; a run is evaluated with its own config", 2)
    if model is not None and (ckpt_path or steps != "all"):
        fail("--model evaluates one model: remove --ckpt-path and --steps", 2)
    if model is not None and cfg and training_run:
        fail("use --cfg or --training-run for the settings of --model, not both", 2)
    if eval_path and len(eval_dataset or []) > 1:
        fail("--eval-path needs exactly one --eval-dataset", 2)
    datasets: list[str | None] = [*dict.fromkeys(eval_dataset or [])] or [None]
    requests = [
        EvalRequest(
            training_run=training_run,
            steps=steps,
            dataset=dataset,
            dataset_path=eval_path,
            split=split,
            subset_frac=subset_frac,
            num_problems=num_problems,
            batch_size=int(batch_size) if batch_size and batch_size.isdecimal() else batch_size,
            max_completion_length=max_completion_length,
            temperature=temperature,
            top_p=top_p,
            num_samples=num_samples,
            opponents=opponent or None,
            nproc=nproc,
            timeout=timeout,
            ckpt_path=ckpt_path,
            name=name,
            base=base,
            model=model,
            cfg=cfg,
            overrides=overrides,
        )
        for dataset in datasets
    ]
    interactive = on_terminal() and not as_json
    check_engine()
    with TerminalOutput() if interactive else nullcontext(EvaluationOutput(sys.stderr if as_json else None)) as output:
        outcomes = run_evaluations(resolve_root(root), requests, output)
    if as_json:
        print(to_json({"evaluations": [asdict(outcome) for outcome in outcomes]}), flush=True)
    raise typer.Exit(max(outcome.exit_code for outcome in outcomes))


def regrade(
    training_run: TrainingRun,
    eval_dataset: Annotated[
        list[str] | None, typer.Option(help="Task name or label (default: all that were evaluated; repeatable).")
    ] = None,
    eval_path: Annotated[str | None, typer.Option(help="Current path of the dataset.")] = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Judge stored completions again, without a GPU, and list the verdicts that changed."""
    from grpo_train.evaluation.regrade import Regraded
    from grpo_train.evaluation.regrade import regrade_evaluations as regrade_run

    steps: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for step in regrade_run(resolve_root(root), training_run, eval_dataset or [], eval_path):
        if isinstance(step, Regraded):
            steps.append(asdict(step))
            print("\n".join(step.lines()), file=sys.stderr if as_json else sys.stdout, flush=True)
        else:
            errors.append({"name": step.name, "step": step.step, "error": step.error, "code": step.code})
    if as_json:
        print(to_json({"steps": steps, "errors": errors}))
    _exit_with([f"{each['name']}: {each['error']}" for each in errors])


def compare(
    training_run: TrainingRun,
    steps: Annotated[
        str, typer.Option(help="Evaluated steps: 0,10,final. The others are compared with the first; with --with, all.")
    ] = "",
    other: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="RUN", help="Another run: its steps are compared with the same steps."),
    ] = None,
    eval_dataset: Annotated[
        list[str] | None, typer.Option(help="Dataset label (default: all that were evaluated; repeatable).")
    ] = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Compare evaluated steps, of a run or of several, problem by problem: 95 % intervals and McNemar's test."""
    from grpo_train.evaluation.report.compare import compare_runs, compare_steps

    names = [part.strip() for part in steps.split(",") if part.strip()]
    if other:
        found = compare_runs(resolve_root(root), training_run, other, names, eval_dataset or [])
    elif names:
        found = compare_steps(resolve_root(root), training_run, names, eval_dataset or [])
    else:
        fail("--steps or --with is required", 2)
    comparisons, errors = found
    if as_json:
        failures = [{"error": str(error), "code": error.code} for error in errors]
        print(to_json({"comparisons": [asdict(each) for each in comparisons], "errors": failures}))
    else:
        columns = ["dataset", "step", "against", "accuracy", "difference", "95 % interval", "gained", "lost", "n", "p"]
        rows = [
            [
                each.dataset, _named(each), each.reference, fraction(each.accuracy), signed(each.difference, fraction),
                f"[{signed(each.low, fraction)}, {signed(each.high, fraction)}]", str(each.gained), str(each.lost),
                str(each.n), f"{each.p_value:.3g}",
            ]
            for each in comparisons
        ]  # fmt: skip
        table(columns, rows, plain=[f"{each.dataset} {_named(each)}: {each.text()}" for each in comparisons])
    _exit_with([str(error) for error in errors])


def _named(one: StepComparison) -> str:
    """A step, and its run where that is another."""
    if is_baseline(one.run):
        return one.run
    return f"{one.name} of {one.run}" if one.run else one.name


def _exit_with(errors: list[str]) -> None:
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(1 if errors else 0)
