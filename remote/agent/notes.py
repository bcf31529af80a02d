"""The request that puts a note on a run."""

from __future__ import annotations

from grpo_train.run_dir import open_run
from grpo_train.run_dir.notes import write_note
from remote.agent.context import BoxContext
from remote.agent.once import Record
from remote.protocol.listed_runs import NoteReply, NoteRequest


def note(box: BoxContext, request: NoteRequest, record: Record) -> NoteReply:
    """Put a note on a run, in place of its last one; an empty text removes it."""
    run = open_run(box.root, request.run)
    record.begin()
    return {"run": run.name, "note": write_note(run.path, request.text)}
