"""Processes that answer questions to checkpoints: one per run, in the session ``ask_<run>``.

Questions and answers are files of ``training_runs/.asks-UID/ID`` (:mod:`grpo_train.run_dir.questions`), which this
account alone can read; the client follows the answers as it follows logs. A process ends after ten minutes without a
question, also when the laptop is gone; its files stay for a day, so that a client that returns reads the last answer.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

from grpo_train.run_dir import open_run
from grpo_train.run_dir.questions import ANSWERS, AskedQuestion, asks_folder, cancel, make_folder
from grpo_train.run_dir.questions import add_question as put
from grpo_train.run_dir.sessions import session_name
from grpo_train.run_dir.version import FORMAT
from remote.agent.box import BoxContext
from remote.agent.engine import find_engine, running_version
from remote.agent.jobs import end_process, option, run_in_session
from remote.agent.once import RequestRecord
from remote.agent.sessions import Sessions
from remote.protocol import RemoteError
from remote.protocol.jobs import (
    AskReply,
    AskRequest,
    CancelAnswerReply,
    CancelAnswerRequest,
    CloseAskReply,
    CloseAskRequest,
    OpenAskReply,
    OpenAskRequest,
)


def open_ask(box: BoxContext, request: OpenAskRequest, record: RequestRecord) -> OpenAskReply:
    """Start a process that loads checkpoints and waits for questions.

    Raises RemoteError: ``session_live`` when the run has one, ``too_old`` for an engine that cannot answer.
    """
    run = open_run(box.root, request.run)
    if not record.key and not request.dry_run:
        raise RemoteError("bad_request", "'idempotency_key' is required")
    version = running_version(box, find_engine(box))
    if 0 < version.format < FORMAT:
        hint = version.upgrade_hint(str(box.repo or ""))
        raise RemoteError("too_old", f"box engine {version.version} cannot answer questions: upgrade it", hint)
    folder = asks_folder(box.root) / (record.key or "ID")
    arguments = ["generate", "--training-run", run.name, "--step", ",".join(map(str, request.steps))]
    arguments += [*option(request, "device"), "--folder", str(folder)]
    record.begin()
    if not request.dry_run:
        make_folder(folder)
    try:
        session = session_name(f"ask_{run.name}")
        reply = run_in_session(box, session, arguments, run.name, request.dry_run, record)
    except RemoteError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return {**reply, "ask": record.key, "answers": str((folder / ANSWERS).relative_to(box.root))}


def ask(box: BoxContext, request: AskRequest, record: RequestRecord) -> AskReply:
    """Pass a question on. Raises RemoteError ``ask_ended`` when the process is gone."""
    if not record.key:
        raise RemoteError("bad_request", "'idempotency_key' is required")
    row = Sessions(box).with_key(request.ask)
    if row is None or row["dead"]:
        raise RemoteError("ask_ended", "the process that answers has ended", "ask again: that starts it")
    record.begin()
    put(
        asks_folder(box.root) / request.ask,
        AskedQuestion(
            record.key, request.prompt, request.index, request.count, request.temperature, request.seed
        ),
    )  # fmt: skip
    return {"question": record.key}


def cancel_answer(box: BoxContext, request: CancelAnswerRequest, record: RequestRecord) -> CancelAnswerReply:
    """Stop the answer to one question. Raises RemoteError ``ask_ended`` when its process was closed."""
    record.begin()
    try:
        cancel(asks_folder(box.root) / request.ask, request.question)
    except FileNotFoundError:
        raise RemoteError("ask_ended", "the process that answers was closed", "ask again: that starts it") from None
    return {"question": request.question}


def close_ask(box: BoxContext, request: CloseAskRequest, record: RequestRecord) -> CloseAskReply:
    """End a process, and remove its session, questions and answers; done already is done."""
    record.begin()
    sessions, left = Sessions(box), []
    with suppress(RemoteError):  # without tmux there is no session
        if (row := sessions.with_key(request.ask)) is not None:
            if not row["dead"] and end_process(row["pid"], row["start"]).is_alive:
                left.append(int(row["pid"]))
            sessions.remove(row)
    shutil.rmtree(asks_folder(box.root) / request.ask, ignore_errors=True)
    return {"left": left}
