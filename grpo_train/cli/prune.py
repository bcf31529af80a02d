"""``grpo-train prune``: remove checkpoints that nothing needs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from grpo_train.cli.options import AsJson, Root, TrainingRun
from grpo_train.cli.output import fail, table
from grpo_train.run_dir import Checkpoint, open_run, resolve_root
from grpo_train.run_dir.safe_json import Unreadable
from grpo_train.run_dir.spare import checkpoint_size
from grpo_train.train.retention import remove_checkpoints, spare_checkpoints


def prune(
    training_run: TrainingRun,
    steps: Annotated[str, typer.Option(help="Comma-separated steps (default: all that nothing needs).")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it, they are only listed.")] = False,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Remove checkpoints that nothing needs, or list them.

    The last checkpoint, the best evaluated one of each dataset, milestones, and those that an evaluation or another run
    uses are always kept.
    """
    run = open_run(resolve_root(root), training_run)
    try:
        spare, kept = spare_checkpoints(run)
    except (ValueError, Unreadable) as error:
        fail(f"nothing is removed: {error}")
    chosen = _chosen(steps, spare, kept)
    sizes = {checkpoint.step: checkpoint_size(checkpoint.path) for checkpoint in chosen}
    removed = remove_checkpoints(run, chosen) if yes else []
    if as_json:
        facts: dict[str, Any] = {
            "run": run.name,
            "spare": [{"step": step, "bytes": size} for step, size in sizes.items()],
            "kept": {str(step): reason for step, reason in sorted(kept.items())},
            "removed": removed,
        }
        print(json.dumps(facts, indent=1))
        return
    rows = [(step, "removed" if step in removed else "kept: in use" if yes else "spare") for step in sizes]
    cells = [[f"step_{step}", f"{sizes[step] / 1e6:,.1f} MB", word] for step, word in rows]
    cells += [[f"step_{step}", "", f"kept: {reason}"] for step, reason in sorted(kept.items())]
    table(("checkpoint", "size", "state"), cells)
    total = sum(sizes[step] for step in removed) if yes else sum(sizes.values())
    print(f"{total / 1e9:,.3f} GB {'freed' if yes else 'can be freed: rerun with --yes' if chosen else 'can be freed'}")


def _chosen(steps: str, spare: list[Checkpoint], kept: dict[int, str]) -> list[Checkpoint]:
    """The checkpoints to remove; exits where ``steps`` names others."""
    if not steps:
        return spare
    known = {checkpoint.step: checkpoint for checkpoint in spare}
    chosen = []
    for word in steps.split(","):
        text = word.strip()
        if not (text.isascii() and text.isdecimal()):
            fail(f"--steps: {text!r} is not a step", 2)
        step = int(text)
        if step in kept:
            fail(f"step_{step} is kept: {kept[step]}", 2)
        if step not in known:
            fail(f"no complete checkpoint step_{step}", 2)
        chosen.append(known[step])
    return chosen
