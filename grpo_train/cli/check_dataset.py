"""``grpo-train check-dataset``: are all rows readable, does every reference solution pass, what do the splits share?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NoReturn, get_args

import typer

from grpo_train.config import schema
from grpo_train.tasks import Attempt, Problem, Split, Task, TaskError, load_task
from grpo_train.tasks.jsonl import JsonlTask
from grpo_train.tasks.mbpp import MbppTask
from grpo_train.tasks.shared.overlap import NGRAM, normal_text, sharing

SHOWN = 5
"""Of the rows that are wrong so many are printed; --json has them all."""


@dataclass(frozen=True)
class SplitReport:
    """What one split is like."""

    split: str
    rows: int
    right: int
    """Rows whose reference solution is right."""
    wrong: list[str] = field(default_factory=list)
    """The others: which row, and the verdict's reason."""
    duplicates: int = 0
    """Rows whose text stood in an earlier row."""


@dataclass(frozen=True)
class Overlap:
    """What training problems share with the problems of a held-out split."""

    split: str
    exact: int
    """Training problems that are in it word for word, but for case and white space."""
    ngram: int
    """Training problems that share 13 words in a row with one of it; those of ``exact`` included where long enough."""


@dataclass(frozen=True)
class Report:
    """All that was found."""

    dataset: str
    path: str | None
    splits: list[SplitReport]
    overlaps: list[Overlap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Of all splits."""
        return sum(split.rows for split in self.splits)

    @property
    def right(self) -> int:
        """Rows whose reference solution is right."""
        return sum(split.right for split in self.splits)

    @property
    def is_good(self) -> bool:
        """Every reference solution is right. Duplicates and overlaps are told, not judged."""
        return self.right == self.rows


def check_answers(config: schema.Task) -> Report:
    """Judge every gold answer as a model would write it, in both readings. Raises TaskError."""
    task = load_task(config)
    problems = {split: list(_problems(task, split)) for split in _splits(task)}
    splits = [_check_split(task, split, listed) for split, listed in problems.items()]
    notes = list(task.data.notes) if isinstance(task, JsonlTask) else []
    texts: dict[str, list[str]] = {s: [problem.question for problem in listed] for s, listed in problems.items()}
    return Report(config.name, config.path, splits, overlaps_of(texts), notes)


def check_mbpp(config: schema.Task) -> Report:
    """Run every reference solution against its asserts, in the sandbox. Raises TaskError."""
    task = load_task(config.model_copy(update={"template": "r1", "visible_tests": 0}))
    assert isinstance(task, MbppTask)
    rows = task.published()
    problems = {split: [task.problem_of(row, row.task_id) for row in listed] for split, listed in rows.items()}
    splits = [_check_split(task, split, listed) for split, listed in problems.items()]
    texts = {split: [row.text for row in listed] for split, listed in rows.items()}
    left_out = len(rows.get("train", [])) - task.size("train")
    notes = [f"{left_out} training problems are left out of training: they are held out, word for word"]
    return Report(config.name, config.path, splits, overlaps_of(texts), notes if left_out else [])


CHECKERS: dict[str, Callable[[schema.Task], Report]] = {
    "gsm8k": check_answers,
    "jsonl": check_answers,
    "math": check_answers,
    "mbpp": check_mbpp,
}
"""By dataset: raises TaskError where its rows cannot be read."""


def overlaps_of(texts: Mapping[str, list[str]]) -> list[Overlap]:
    """What the training texts share with those of each other split."""
    found = []
    for split in ("validation", "test"):
        if "train" in texts and split in texts:
            others = {normal_text(text) for text in texts[split]}
            exact = sum(normal_text(text) in others for text in texts["train"])
            found.append(Overlap(split, exact, len(sharing(texts["train"], texts[split]))))
    return found


def duplicates_in(texts: Sequence[str]) -> int:
    """How many of the texts stood there before."""
    return len(texts) - len({normal_text(text) for text in texts})


def lines_of(report: Report) -> Iterator[str]:
    """The report for people."""
    yield f"{report.dataset}: {report.path or 'from the hub'}"
    for split in report.splits:
        right = f"{split.right}/{split.rows} reference solutions are right"
        yield f"  {split.split:<10} {right}, {split.duplicates} duplicates"
        for wrong in split.wrong[:SHOWN]:
            yield f"    {wrong}"
        if len(split.wrong) > SHOWN:
            yield f"    … and {len(split.wrong) - SHOWN} more"
    for overlap in report.overlaps:
        yield (
            f"  train and {overlap.split}: {overlap.exact} problems word for word in both, "
            f"{overlap.ngram} share {NGRAM} words in a row"
        )
    for note in report.notes:
        yield f"  {note}"
    yield f"{report.right}/{report.rows}"


def check_dataset(
    dataset: Annotated[str, typer.Argument(help=f"{', '.join(CHECKERS)}.")],
    path: Annotated[str | None, typer.Option(help="The file or directory, as task.path (default: the hub).")] = None,
    prompt_field: Annotated[str, typer.Option(help="jsonl: the field with the question.")] = "prompt",
    answer_field: Annotated[str, typer.Option(help="jsonl: the field with the gold answer.")] = "answer",
    template_field: Annotated[str, typer.Option(help="jsonl: the field with a row's own template.")] = "template",
    grader: Annotated[str, typer.Option(help="jsonl: number, text, math, or your own module:function.")] = "number",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a dataset: all rows are readable, all reference solutions right; what is there twice, or in two splits."""
    if dataset not in CHECKERS:
        _fail(f"no dataset is called '{dataset}'; there are {', '.join(CHECKERS)}")
    config = schema.Task(
        name=dataset,
        path=str(Path(path).expanduser()) if path else None,
        prompt_field=prompt_field,
        answer_field=answer_field,
        template_field=template_field,
        grader=grader,
    )
    try:
        report = CHECKERS[dataset](config)
    except TaskError as error:
        _fail(str(error))
    if as_json:
        totals = {"rows": report.rows, "right": report.right, "is_good": report.is_good}
        print(json.dumps({**asdict(report), **totals}, indent=1))
    else:
        print("\n".join(lines_of(report)))
    raise typer.Exit(0 if report.is_good else 1)


def register(app: typer.Typer) -> None:
    """Add the command to ``grpo-train``."""
    app.command("check-dataset")(check_dataset)


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _splits(task: Task) -> list[Split]:
    """The splits that the data has. Raises TaskError where it has none, and for rows that are broken."""
    found: list[Split] = []
    missing = None
    for split in get_args(Split):
        try:
            task.size(split)
            found.append(split)
        except TaskError as error:
            if f"no {split} split" not in str(error):
                raise
            missing = error
    if not found and missing is not None:
        raise missing
    return found


def _problems(task: Task, split: Split) -> Iterator[Problem]:
    return (task.problem(split, index) for index in range(task.size(split)))


def _check_split(task: Task, split: str, problems: list[Problem]) -> SplitReport:
    def check(problem: Problem) -> str | None:
        verdict = task.judge(Attempt(problem, f"It is so.</think> <answer>{problem.answer}</answer>"))
        if verdict.correct and verdict.flexible is not False:
            return None
        reading = verdict.reason if not verdict.correct else "wrong in the flexible reading"
        return f"{split} {problem.index}: {problem.answer[:60]!r} is {reading}"

    if task.slow:
        with ThreadPoolExecutor() as pool:
            verdicts = list(pool.map(check, problems))
    else:
        verdicts = [check(problem) for problem in problems]
    wrong = [verdict for verdict in verdicts if verdict is not None]
    texts = [problem.question for problem in problems]
    return SplitReport(split, len(problems), len(problems) - len(wrong), wrong, duplicates_in(texts))
