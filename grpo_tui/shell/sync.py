"""``grpo-tui sync``: bring this checkout's commit to a box."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from grpo_tui.model.formatting import byte_size
from grpo_tui.shell.copying import PARTIAL, copying
from remote.boxes import Box

if TYPE_CHECKING:
    from remote.code import Synced


def sync(box: Box, arguments: argparse.Namespace) -> int:
    """Bring the code, and say what the next launch trains with."""
    synced = bring(box, with_changes=arguments.with_changes, readonly=arguments.readonly)
    if arguments.json:
        print(json.dumps(asdict(synced), indent=1))
    else:
        print(told(box, synced))
        if synced.needs_setup:
            print(f"its engine is not set up for this commit: grpo-tui env setup --box {box.name}", file=sys.stderr)
    return PARTIAL if synced.left_out else 0


def bring(box: Box, *, with_changes: bool, readonly: bool) -> Synced:
    """Sync, with a progress line on a terminal. Raises UserError."""
    from remote.code import sync as sync_code

    with copying(box, "sync", readonly=readonly) as copier:
        return sync_code(copier, with_changes=with_changes)


def told(box: Box, synced: Synced) -> str:
    """``h200-a: 1a2b3c4d5e "Subject" is in ~/.grpo/code (12 KB sent)``."""
    subject = f' "{synced.subject}"' if synced.subject else ""
    sent = f" ({byte_size(synced.size)} sent)" if synced.size else ""
    return f"{box.name}: {synced.code}{subject} is in {synced.path}{sent}"
