"""``grpo-train clean``: what killed commands left on this disk."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.backup.destinations import open_destination
from grpo_train.backup.leftovers import ROOT, Leftover, erase, find_leftovers, homes_of, remove_leftovers
from grpo_train.cli.options import AsJson, Root
from grpo_train.cli.transfer import DONE, PARTLY, Yes, confirm, failing, print_json, size_text
from grpo_train.run_dir import existing_root
from grpo_train.run_dir.errors import UserError
from grpo_train.supervisor.dead_sessions import dead_sessions, end_sessions


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Remove what killed commands left below the root: staging directories, temporary files, self-tests.

    What a killed self-test backed up is removed from its destination first. Tmux sessions of this root in which
    everything has ended are closed, too. Nothing that a process works on or that is not known is touched. grpo-train
    cleanup removes checkpoints.
    """
    with failing(as_json):
        folder = existing_root(root)
        found = find_leftovers(folder)
        sessions = dead_sessions(folder)
        if not as_json:
            for each in found:
                print(f"  remove  {each.path}  {each.what}, {size_text(each.bytes)}")
                for home, _ in homes_of(folder / each.path / ROOT) if each.destination else ():
                    print(f"  remove  {home.prefix}  its backup in {each.destination}, if there is one")
            for session in sessions:
                print(f"  close   tmux session {session.name}")
        if not dry_run and (found or sessions):
            total = size_text(sum(each.bytes for each in found))
            confirm(yes, f"Remove {len(found)} leftovers ({total}) and close {len(sessions)} sessions?")
            plan = found
            erased = [each for each in plan if not each.destination or _erase(folder, each)]
            found, sessions = remove_leftovers(folder, erased), end_sessions(folder, sessions)
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


def _erase(root: Path, selftest: Leftover) -> bool:
    """Remove what a killed self-test backed up. Where that fails, its directory stays: it proves what is its own."""
    here = root / selftest.path / ROOT
    try:
        erase(open_destination(selftest.destination, here, write=False).store, here)
    except (UserError, OSError) as error:
        print(
            f"warning: {selftest.path} stays: its backup in {selftest.destination} was not removed: {error}",
            file=sys.stderr,
        )
        return False
    return True
