"""``grpo-train generate``: ask checkpoints a question and watch what they write."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grpo_train.ask.output import JsonOutput, SessionOutput, TextOutput
from grpo_train.cli.options import Root
from grpo_train.cli.output import fail
from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.errors import UserError
from grpo_train.train.preflight import check_engine

if TYPE_CHECKING:
    from grpo_train.ask.questions import Question
    from grpo_train.ask.session import AskSession

IDLE_S = 600.0
"""A process that waits for questions holds the model in memory, at most for so long without one."""


def generate(
    source: Annotated[
        Literal["-"] | None, typer.Argument(metavar="[-]", help="-: questions from standard input, one a line.")
    ] = None,
    training_run: Annotated[str | None, typer.Option(help="Run name (see grpo-train runs) or path.")] = None,
    step: Annotated[
        str, typer.Option(help="Checkpoints: latest, final, 40, or 0,40 (0: the model the run started from).")
    ] = "latest",
    model: Annotated[str | None, typer.Option(help="A model without a run: hub ID or directory.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Your question, put into the run's prompt.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="A held-out problem by its number; judged.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Completions.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 = greedy (default: as the run's evaluation).")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling threshold.")] = None,
    max_completion_length: Annotated[int | None, typer.Option(min=1, help="Generation budget in tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other completions.")] = 0,
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option(help="Default: the GPU, unless a run is training on it.", show_default=False),
    ] = None,
    base: Annotated[str | None, typer.Option(help="Base model of an adapter, if the recorded one has moved.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Task of --index and of the prompt (default: the run's).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Answer the questions.jsonl of a directory in its answers.jsonl, as the app needs it."),
    ] = None,
    root: Root = None,
) -> None:
    """Ask checkpoints a question, and watch the completions as they are drawn.

    Several checkpoints get the same seeds. A held-out problem is judged by the run's rewards.
    """
    if (training_run is None) == (model is None):
        fail("give either --training-run or --model", 2)
    if [prompt is not None, index is not None, source is not None, folder is not None].count(True) != 1:
        fail("ask one thing: --prompt TEXT, --index N, - for questions from standard input, or --folder DIR", 2)
    check_engine()
    from grpo_train.ask.session import open_session
    from grpo_train.evaluation.request import EvalRequest

    request = EvalRequest(
        training_run, steps=step, model=model, base=base, dataset=dataset, num_problems=1, num_samples=1
    )
    if folder is not None:
        from grpo_train.ask.folder import serve_questions

        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # helpers of the rewards end with it
        serve_questions(folder, lambda: open_session(resolve_root(root), request, device), IDLE_S)
        return
    session = open_session(resolve_root(root), request, device)
    sampling = session.sampling(count, temperature, top_p, max_completion_length, seed)
    first = session.problem(index) if index is not None else session.question(prompt) if prompt is not None else None
    checkpoints = session.load()
    output: SessionOutput = JsonOutput() if as_json else TextOutput(len(checkpoints), count)
    output.ready(checkpoints)
    failed = False
    for question in [first] if first else _questions(session):
        if isinstance(question, UserError):
            output.error(question)
            failed = True
            continue
        output.question(question, checkpoints[0])
        for checkpoint in checkpoints:
            output.checkpoint(checkpoint.name)
            try:
                checkpoint.complete(question, sampling, output.text, output.answer)
            except UserError as error:
                output.error(error)
                failed = True
    raise typer.Exit(1 if failed else 0)


def _questions(session: AskSession) -> Iterator[Question | UserError]:
    """The lines of standard input; in place of one that cannot be asked, why."""
    from grpo_train.ask.questions import QuestionError, lines_of

    for number, line in enumerate(lines_of(sys.stdin.fileno(), IDLE_S), 1):
        try:
            if "\ufffd" in line:
                raise QuestionError(f"standard input, line {number}: not UTF-8 text")
            yield session.question(line)
        except UserError as error:
            yield error
