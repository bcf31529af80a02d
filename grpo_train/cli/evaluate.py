"""The commands of evaluation: ``grpo-train eval``, ``regrade`` and ``compare``. No torch in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.config import ConfigError
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir import RunDirError, resolve_root
from grpo_train.tasks import TaskError
from grpo_train.train.preflight import check_engine

Root = Annotated[Path | None, typer.Option(help="Where runs live (default: LOCALFS_ROOT, else /lambda/nfs/localfs).")]
BATCH_SIZE = "Completions generated at once (default 32), or auto: what free memory holds."


def evaluate(
    training_run: Annotated[
        str | None, typer.Option(help="The run's name or path; not needed where --ckpt-path is a step of a run.")
    ] = None,
    steps: Annotated[
        str, typer.Option(help="all, latest, final, or step numbers: 0,5,10 (0: the model it started from).")
    ] = "all",
    eval_dataset: Annotated[
        list[str] | None, typer.Option(help="A task's name (default: the run's own task); repeatable.")
    ] = None,
    eval_path: Annotated[str | None, typer.Option(help="The dataset's file or directory (default: task.path).")] = None,
    split: Annotated[str | None, typer.Option(help="test (default), validation or train.")] = None,
    subset_frac: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Share of the split; larger shares contain smaller ones.")
    ] = None,
    num_problems: Annotated[int | None, typer.Option(min=1, help="At most so many problems, nested likewise.")] = None,
    batch_size: Annotated[str | None, typer.Option(metavar="N|auto", help=BATCH_SIZE)] = None,
    max_completion_length: Annotated[int | None, typer.Option(min=1, help="Generation budget in tokens.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 = greedy (default: the task's own: 0; mbpp 0.2).")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling.")] = None,
    num_samples: Annotated[
        int | None, typer.Option(min=1, help="Completions of each problem, for pass@k and maj@k.")
    ] = None,
    opponent: Annotated[
        list[str] | None,
        typer.Option(help="Games: who is played against, by name or a checkpoint's directory; repeatable."),
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes, one a GPU; each takes its share.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Seconds that one step may take.")] = None,
    ckpt_path: Annotated[
        Path | None, typer.Option(help="Evaluate this checkpoint directory instead of a step of the run.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of --ckpt-path in the results.")] = None,
    base: Annotated[str | None, typer.Option(help="Base model of an adapter, where the recorded one moved.")] = None,
    root: Root = None,
) -> None:
    """Evaluate checkpoints of a run in processes of their own. Interrupted, it goes on where it was when run again."""
    from grpo_train.evaluation.runner import EvalError, EvalRequest, run_evaluations

    if training_run is None:
        folder = ckpt_path.expanduser().absolute().parent if ckpt_path else Path()
        if folder.name != "training_state":
            _fail("say which run it belongs to: --training-run RUN")
        training_run = str(folder.parent)
    if name is not None and ckpt_path is None:
        _fail("--name says what --ckpt-path is called in the results: give it with --ckpt-path")
    if eval_path and len(eval_dataset or []) > 1:
        _fail("--eval-path is the place of one dataset: give it with one --eval-dataset")
    datasets: list[str | None] = [*dict.fromkeys(eval_dataset or [])] or [None]
    requests = [
        EvalRequest(
            training_run=str(training_run),
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
        )
        for dataset in datasets
    ]
    try:
        check_engine()
        raise typer.Exit(run_evaluations(resolve_root(root), requests))
    except (ConfigError, RunDirError, TaskError, PolicyError, EvalError) as error:
        _fail(error)


def regrade(
    training_run: Annotated[str, typer.Option(help="The run's name or path.")],
    eval_dataset: Annotated[
        list[str] | None, typer.Option(help="A task's name (default: all that was evaluated); repeatable.")
    ] = None,
    eval_path: Annotated[str | None, typer.Option(help="Where the dataset's file is by now.")] = None,
    root: Root = None,
) -> None:
    """Judge stored completions again, without a GPU, and say what changed."""
    from grpo_train.evaluation.plan import EvalError
    from grpo_train.evaluation.regrade import regrade as judge_again

    try:
        for step in judge_again(resolve_root(root), training_run, eval_dataset or [], eval_path):
            print("\n".join(step.lines()), flush=True)
    except (ConfigError, RunDirError, TaskError, EvalError) as error:
        _fail(error)


def compare(
    training_run: Annotated[str, typer.Option(help="The run's name or path.")],
    steps: Annotated[str, typer.Option(help="Evaluated steps; each is compared with the first: 0,10,20.")],
    eval_dataset: Annotated[
        list[str] | None, typer.Option(help="A dataset's name in the evaluation trees (default: all); repeatable.")
    ] = None,
    root: Root = None,
) -> None:
    """Compare evaluated steps problem by problem: the difference with its interval, what was gained and lost."""
    from grpo_train.evaluation.plan import EvalError
    from grpo_train.evaluation.report.compare import steps_compared

    names = [word.strip() for word in steps.split(",") if word.strip()]
    try:
        print("\n".join(steps_compared(resolve_root(root), training_run, names, eval_dataset or [])))
    except (ConfigError, RunDirError, EvalError) as error:
        _fail(error)


def register(app: typer.Typer) -> None:
    """Add the commands to ``grpo-train``."""
    app.command("eval")(evaluate)
    app.command("regrade")(regrade)
    app.command("compare")(compare)


def _fail(message: object) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(2)
