"""``grpo-train clean``: what killed commands left on this disk."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from grpo_train.backup.leftovers import find_leftovers, remove_leftovers
from grpo_train.cli.options import AsJson, Root
from grpo_train.cli.transfer import DONE, PARTLY, Yes, confirm, failing, print_json, size_text
from grpo_train.run_dir import resolve_root
from grpo_train.supervisor.dead_sessions import dead_sessions, end_sessions


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Remove what killed commands left below the root: staging directories, temporary files, self-tests.

    Tmux sessions of this root in which everything has ended are closed, too. Nothing that a process works on or that
    is not known is touched. grpo-train cleanup removes checkpoints.
    """
    folder = resolve_root(root)
    with failing(as_json):
        found = find_leftovers(folder) if folder.is_dir() else []
        sessions = dead_sessions(folder)
        if not as_json:
            for each in found:
                print(f"  remove  {each.path}  {each.what}, {size_text(each.bytes)}")
            for session in sessions:
                print(f"  close   tmux session {session.name}")
        if not dry_run and (found or sessions):
            total = size_text(sum(each.bytes for each in found))
            confirm(yes, f"Remove {len(found)} leftovers ({total}) and close {len(sessions)} sessions?")
            plan = found
            found, sessions = remove_leftovers(folder, plan), end_sessions(folder, sessions)
            left = len(plan) - len(found)
        else:
            left = 0
    if as_json:
        print_json({"leftovers": [asdict(each) for each in found], "sessions": [each.name for each in sessions]})
    else:
        verb = "would remove" if dry_run else "removed"
        total = size_text(sum(each.bytes for each in found))
        print(f"{verb} {len(found)} leftovers, {total}; {len(sessions)} sessions")
    raise typer.Exit(PARTLY if left else DONE)
