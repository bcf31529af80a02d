"""Resume a run, and plan that: an edited workflow is confirmed before its command starts, where nobody could answer."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from grpo_train.run_dir import RunDir, open_run
from grpo_train.run_dir.config_values import config_values
from grpo_train.run_dir.kill import started_at
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes
from grpo_train.run_dir.sessions import session_name
from grpo_train.run_dir.workflow_file import is_workflow, workflow_state
from remote.agent.ask_engine import ask_engine
from remote.agent.code import for_resume, worktree
from remote.agent.code import record as record_code
from remote.agent.context import BoxContext
from remote.agent.jobs import option, run_in_session, set_options, started_since
from remote.agent.once import Record
from remote.agent.sessions import Sessions
from remote.agent.slurm.jobs import is_slurm, resume_job
from remote.agent.start import UNCHECKED, not_checked
from remote.protocol import RemoteError
from remote.protocol.jobs import PlanResumeReply, PlanResumeRequest, ResumeReply, ResumeRequest

PLAN_WAIT_S = 45.0
"""The engine imports torch to check the GPUs."""


def resume(box: BoxContext, request: ResumeRequest, record: Record) -> ResumeReply:
    """Resume a run from a checkpoint, in the run's session.

    Raises RemoteError: ``code_differs`` where the synced code is not that of the run and ``request.code`` chooses none;
    ``workflow_edited`` for edits of the workflow that ``request.confirmation`` does not name. A repeated request has
    been confirmed.
    """
    run = open_run(box.root, request.run)
    resumed, observed = started_since(run, record), run.observed_state()
    repeated = resumed or (not is_slurm(box) and Sessions(box).has_key(record.key))
    if observed.is_live and not repeated:
        host = f" on {observed.host}" if observed.host else ""
        raise RemoteError("run_is_live", f"{run.name} is {observed.state}{host}", "stop it before you resume it")
    arguments = _arguments(run, request)
    checkpoint = run.checkpoint(str(request.from_step or "latest"))
    code = None if repeated else for_resume(box, run, request.code)
    note = ""
    if not repeated:
        must_answer = not request.dry_run and _may_be_edited(run, request)
        changes = not is_slurm(box) and bool(request.dry_run or request.overrides or request.nproc)
        confirmation, note = _check(box, arguments, must_answer) if must_answer or changes else ("", "")
        if confirmation and not request.dry_run:
            if confirmation != request.confirmation:
                message = f"the workflow of {run.name} was edited since its last start"
                raise RemoteError("workflow_edited", message, "confirm the edited stages")
            arguments += ["--yes"]
    record.begin(started_at=started_at(run))
    if code is not None and not request.dry_run:
        box = box.at(worktree(code, run))
        record_code(run, code)
    if is_slurm(box):
        return {**resume_job(box, run, arguments, request.dry_run, record, resumed), "step": checkpoint.step}
    reply = run_in_session(box, session_name(run.name), arguments, run.name, request.dry_run, record, resumed)
    return {**reply, "step": checkpoint.step, **({"note": note} if note else {})}  # type: ignore[typeddict-item]


def _check(box: BoxContext, arguments: list[str], must_answer: bool) -> tuple[str, str]:
    """Have the engine check a resume as its start will; returns the confirmation of an edited workflow, and what to say
    where the engine does not answer and need not. Raises RemoteError."""
    try:
        return _plan(box, arguments)["confirmation"], ""
    except RemoteError as error:
        if must_answer or error.code not in UNCHECKED:
            raise
        return "", not_checked(error)


def plan_resume(box: BoxContext, request: PlanResumeRequest) -> PlanResumeReply:
    """What a resume would do, and what of its workflow was edited. Raises RemoteError, with the engine's code."""
    return _plan(box, _arguments(open_run(box.root, request.run), request))


def _plan(box: BoxContext, arguments: list[str]) -> PlanResumeReply:
    plan = ask_engine(box, [*arguments, "--dry-run"], PLAN_WAIT_S)
    if not isinstance(plan, dict) or not isinstance(plan.get("confirmation"), str):
        raise RemoteError("no_answer", "grpo-train resume --dry-run did not print a plan")
    return cast(PlanResumeReply, plan)


def _arguments(run: RunDir, request: ResumeRequest | PlanResumeRequest) -> list[str]:
    """``--nproc`` and ``--set`` are passed only when requested: version 0.1.0 of the engine does not know them."""
    arguments = ["resume", "--training-run", run.name, "--from-step", str(request.from_step or "latest")]
    for name in ("additional_steps", "nproc"):
        arguments += option(request, name)
    return [*arguments, *set_options(request.overrides)]


def _may_be_edited(run: RunDir, request: ResumeRequest) -> bool:
    """Whether the engine has to compare the workflow: without one, before or now, it is not asked, which takes time."""
    with suppress(Unreadable, OSError):
        if (recorded := workflow_state(run.path)) is None:
            return False
        if is_workflow(recorded["stages"]) or any(word.startswith("workflow") for word in request.overrides):
            return True
        text = (read_bytes(run.config_file, MAX_RUN_FILE_BYTES) or b"").decode(errors="replace")
        return "\nworkflow:" in f"\n{text}" and config_values(text).get("workflow.stages") != ""
    return True
