"""Write a program that runs; the reward is what happens when it runs.

``score`` is +1.0 for a program that runs and prints something; +0.5 for one that runs and prints nothing; -0.5 for a
syntax or indentation error, or no program at all (a program that does nothing runs, and must not tie with its absence);
-1.0 for a runtime error, a timeout and any other end. *What* is printed is not checked: for generated requests
``code_execution/right_output`` is the share with the requested output, and a reward that grows without it is hollow.

Requests are generated (:mod:`grpo_train.tasks.shared.code_requests`; ``task.level`` 1 to 10), or read from the field
``task.prompt_field`` of ``task.path`` (see :mod:`grpo_train.tasks.shared.data_files`).

Values of ``task.template``: ``compact`` (default: the request and an open fence), ``chat``, ``r1``, ``question`` or
your own text with {question} in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.sandbox import run_program
from grpo_train.tasks.shared.base import Attempt, NoSplitError, Problem, Split, TaskError, TaskKind, Verdict
from grpo_train.tasks.shared.code import COMPACT, Program, ProgramTask, denials, make_frame, program_of, suspicious
from grpo_train.tasks.shared.code_requests import CodeRequest, requests
from grpo_train.tasks.shared.data_files import locate, split_files
from grpo_train.tasks.shared.data_rows import rows_of

HELD_OUT = 256
"""Generated requests of the test split."""
MAX_TRAIN = 4096
"""Generated requests of the train split."""

CHAT = "Write a Python program for this, in a markdown code block. It gets no input.\n\n{question}"

PRINTS, SILENT, NO_PROGRAM, FAILS = 1.0, 0.5, -0.5, -1.0
RIGHT_OUTPUT = "code_execution/right_output"
SHOWN = 500
"""Maximum length of the output in the log."""


def load(config: schema.TaskConfig) -> CodeExecutionTask:
    """The task; files are read when first used. Raises TaskError for a missing path or an unknown template."""
    frame = make_frame(config, {"compact": COMPACT}, default="compact", chat=CHAT)
    path = locate(config.path) if config.path else None
    return CodeExecutionTask(
        name="code_execution", label="code_execution", stop=frame.stop, rewards=("score",), config=config, frame=frame,
        path=path,
    )  # fmt: skip


@dataclass(frozen=True)
class CodeExecutionTask(ProgramTask):
    """Requests for programs, which are run."""

    path: Path | None = None
    """Data of the requests; None = generated."""

    def rows(self, split: Split) -> Sequence[CodeRequest]:
        if self.path is None:
            if split == "validation":
                raise NoSplitError("task code_execution has no validation split: use test, or task.path")
            drawn = _drawn(self.config.level)
            return drawn[:HELD_OUT] if split == "test" else drawn[HELD_OUT:]
        files = split_files(self.path).get(split)
        if files is None:
            raise NoSplitError(f"task.path: '{self.path}' has no {split} split")
        return _requests_of(tuple(files), self.config.prompt_field, self.config.answer_field)

    def problem(self, split: Split, index: int) -> Problem:
        request = self.rows(split)[index]
        return self.frame.ask(self.config, index, request.text, request.output)

    def judge(self, attempt: Attempt) -> Verdict:
        program = program_of(attempt.completion, self.frame, truncated=attempt.truncated)
        gold = attempt.problem.answer
        if program.source is None or not _has_code(program.source):
            return _verdict(program, "no_code", NO_PROGRAM, {RIGHT_OUTPUT: 0.0} if gold else {})
        run = run_program(program.source, cpu_seconds=self.sandbox.cpu_seconds, memory=self.memory_bytes)
        if run.status == "ok":
            printed = bool(run.stdout.strip())
            reason, score = ("ok", PRINTS) if printed else ("silent", SILENT)
        else:
            reason, score = run.status, NO_PROGRAM if run.status == "syntax_error" else FAILS
        metrics = denials(run.denials)
        if gold:
            metrics[RIGHT_OUTPUT] = float(score == PRINTS and run.stdout.split() == gold.split())
        facts = {"isolation": run.isolation, "output": run.stdout[:SHOWN], "suspicious": suspicious(program.source)}
        return _verdict(program, reason, score, metrics, facts)


@lru_cache(maxsize=4)
def _drawn(level: int) -> list[CodeRequest]:
    return requests(level, HELD_OUT + MAX_TRAIN)


@lru_cache(maxsize=4)
def _requests_of(files: tuple[Path, ...], prompt_field: str, answer_field: str) -> list[CodeRequest]:
    found = []
    for location, record in (row for file in files for row in rows_of(file)):
        text, output = record.get(prompt_field), record.get(answer_field)
        if not isinstance(text, str) or not text.strip():
            raise TaskError(f"{location}: '{prompt_field}' must be a text (task.prompt_field)")
        found.append(CodeRequest(text.strip(), output if isinstance(output, str) else ""))
    if not found:
        raise TaskError(f"task.path: '{files[0]}' has no rows")
    return found


def _verdict(
    program: Program, reason: str, score: float, metrics: Mapping[str, float] = {}, facts: Mapping[str, Any] = {}
) -> Verdict:
    counts = {"reward/avg_batch_reward": score, "reward/successful_predictions_count": float(score > 0)}
    return Verdict(
        correct=score == PRINTS and program.closed,
        formatted=program.closed and reason != "no_code",
        reason=reason,
        answer=program.source,
        score=score,
        metrics={**counts, **metrics},
        facts=facts,
    )


def _has_code(source: str) -> bool:
    """Whether the program has more than comments."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in source.split("\n"))


TASK = TaskKind(
    "code_execution",
    "Programs, rewarded for running without errors",
    load,
)
