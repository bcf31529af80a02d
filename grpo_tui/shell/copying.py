"""``grpo-tui get``, ``put`` and ``sync``: copy runs, weights, files and this checkout's commit."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.run_dir.errors import UserError
from grpo_tui.box.formatting import byte_size, counted
from grpo_tui.shell.options import add_box_options, exit_code
from remote.boxes import Box

if TYPE_CHECKING:
    from remote.code import Synced
    from remote.copying import Copied, Copier, Progress

PARTIAL = 3
"""Exit code of what is done except for what is named."""
_GET = """\
examples:
  grpo-tui get run_gsm8k:400 ~/models         the weights of step 400, as ~/models/run_gsm8k_step_400
  grpo-tui get run_gsm8k ~/runs               the run, its logs, evaluations and latest checkpoint:
                                              ~/runs is a root (grpo-train report --root ~/runs …)
  grpo-tui get run_gsm8k ~/runs --steps none  without checkpoints
  grpo-tui get eval_runs/baseline             a path below the root on the box

A copy that was interrupted continues when you run the command again. Every file is hashed on both machines.
Exit codes: 0 done, 1 failed: run it again, 2 usage error, 3 done except for what is named.
"""
_PUT = """\
examples:
  grpo-tui put ~/models/start                     becomes checkpoints/start on the box
  grpo-tui put train.jsonl datasets/train.jsonl   a path below the root on the box

A copy that was interrupted continues when you run the command again. Nothing on the box is overwritten.
Exit codes: 0 done, 1 failed: run it again, 2 usage error, 3 done except for what is named.
"""


def run(words: list[str]) -> int:
    """Run a command; returns the exit code."""
    arguments = command_parser(words[0]).parse_args(words[1:])
    try:
        copied = _copy(words[0], arguments)
    except UserError as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        return exit_code(error.code)
    except KeyboardInterrupt:
        print("\ngrpo-tui: interrupted. What has arrived is kept: run the command again to continue.", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(asdict(copied)))
        return PARTIAL if copied.left_out else 0
    there = copied.size - copied.travelled
    already = f", {byte_size(there)} of them were there" if there else ""
    print(f"{counted(copied.files, 'file')}, {byte_size(copied.size)}{already}")
    print("\n".join(copied.paths))
    return PARTIAL if copied.left_out else 0


def command_parser(command: str) -> argparse.ArgumentParser:
    """The options of a command."""
    options = argparse.ArgumentParser(
        prog=f"grpo-tui {command}",
        description="Copy a run, weights or a path from a box." if command == "get" else "Copy files to a box.",
        epilog=_GET if command == "get" else _PUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if command == "get":
        options.add_argument("what", metavar="RUN[:STEP]", help="run, weights of a step (400, latest, final), or path")
        options.add_argument("folder", metavar="DIR", nargs="?", default=".", help="directory (default: this one)")
        steps = "checkpoints of a run: latest (default), final, all, none or steps (10,20)"
        options.add_argument("--steps", default="latest", metavar="WHICH", help=steps)
    else:
        options.add_argument("source", metavar="FILE|DIR", help="file or directory on this machine")
        options.add_argument("to", metavar="PATH", nargs="?", default="", help="path below the box's root")
    add_box_options(options)
    options.add_argument("--json", action="store_true", help="print JSON")
    return options


def _copy(command: str, arguments: argparse.Namespace) -> Copied:
    from grpo_tui.cli import first_box

    with copying(first_box(arguments), command) as copier:
        if command == "get":
            folder = Path(arguments.folder).expanduser().absolute()
            return copier.get(arguments.what, folder, arguments.steps)
        return copier.put(Path(arguments.source), arguments.to)


@contextmanager
def copying(box: Box, command: str, *, readonly: bool = False) -> Iterator[Copier]:
    """A copier that asks and shows its progress in the terminal."""
    from grpo_tui.shell.connection import accept_host_key, answer
    from remote.copying import Copier

    with (
        _shown(f"{command} {box.name}") as progress,
        Copier(
            box, ask_host_key=accept_host_key, ask=answer, progress=progress, say=_say, readonly=readonly
        ) as copier,
    ):  # fmt: skip
        yield copier


def _say(text: str) -> None:
    print(f"grpo-tui: {text}", file=sys.stderr)


@contextmanager
def _shown(title: str) -> Iterator[Progress]:
    """A progress line on a terminal: bytes, rate and time left."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task, shown_at = bar.add_task(title, total=None), 0.0

        def progress(done: int, total: int) -> None:
            nonlocal shown_at
            now = time.monotonic()
            if done == 0 or done == total or now - shown_at >= 0.1:
                bar.update(task, completed=done, total=total)
                shown_at = now

        yield progress


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
