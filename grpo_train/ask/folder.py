"""Answer the questions of a directory (:mod:`grpo_train.run_dir.questions`) with the model loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.ask.output import AnswerCancelled, FolderOutput
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.questions import AskedQuestion, QuestionLog

if TYPE_CHECKING:
    from grpo_train.ask.checkpoint import AskedCheckpoint
    from grpo_train.ask.session import AskSession

POLL_S = 0.1
LOOK_S = 5.0
"""How often a process that waits looks whether a run needs its GPU."""


def serve_questions(folder: Path, open_session: Callable[[], AskSession], idle_s: float, clock: Clock = CLOCK) -> None:
    """Answer until no question came for ``idle_s``, the directory is removed, or a run needs the GPU.

    Whatever ends it is the last event. Raises UserError where the checkpoints cannot be loaded.
    """
    output = FolderOutput(folder, clock)
    print(f"answering questions of the app; ends after {idle_s:.0f} s without one", flush=True)
    try:
        output.say("starting")
        try:
            session = open_session()
            checkpoints = session.load()
        except UserError as error:
            output.say("failed", message=str(error), code=error.code)
            raise
        output.ready(checkpoints)
        try:
            for line in _lines(folder, session, idle_s, clock):
                _answer(line, session, checkpoints, output)
        except UserError as error:
            output.say("ended", message=str(error), code=error.code)
            return
        output.say("ended", message=f"no question for {idle_s / 60:.0f} minutes", code="idle")
    except FileNotFoundError:
        return  # the directory was removed: whoever asked is done


def _lines(folder: Path, session: AskSession, idle_s: float, clock: Clock) -> Iterator[bytes]:
    """The questions as they are asked. Raises EvalError ``gpu_busy`` when a run starts training meanwhile."""
    questions = QuestionLog(folder)
    waits_since = looked_at = clock.monotonic()
    while (now := clock.monotonic()) - waits_since < idle_s:
        lines = questions.new()
        yield from lines
        if lines:
            waits_since = clock.monotonic()
        elif now - looked_at >= LOOK_S:
            session.check_gpu()
            looked_at = now
        clock.sleep(0 if lines else POLL_S)


def _answer(line: bytes, session: AskSession, checkpoints: Sequence[AskedCheckpoint], output: FolderOutput) -> None:
    output.begin("")
    try:
        asked = AskedQuestion.from_line(line)
        output.begin(asked.id)
        question = session.question(asked.prompt) if asked.index is None else session.problem(asked.index)
        sampling = session.sampling(asked.count, asked.temperature, None, None, asked.seed)
        output.question(question, checkpoints[0])
    except UserError as error:
        output.error(error)
    else:
        try:
            for checkpoint in checkpoints:
                output.check_cancelled()
                output.checkpoint(checkpoint.name)
                try:
                    checkpoint.complete(question, sampling, output.text, output.answer)
                except UserError as error:  # a question that is too long for this checkpoint
                    output.error(error)
                output.flush()
        except AnswerCancelled:
            output.flush()
    output.say("done")
    output.begin("")
