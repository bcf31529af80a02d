"""Which checkpoints stay: what a run no longer needs, hidden names, waiting for a removal. Standard library only."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_train.run_dir import fields
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.display import fraction
from grpo_train.run_dir.files import number_in, parse_time, read_json, remove_tree
from grpo_train.run_dir.manifest import MANIFEST, STEP_NAME
from grpo_train.run_dir.processes import is_alive, start_ticks
from grpo_train.run_dir.run import RunDir
from grpo_train.run_dir.safe_json import Unreadable, read_object
from grpo_train.run_dir.status import observe

# which checkpoints a run needs, and what each of the others takes on disk ----------------------------------
# :mod:`grpo_train.train.retention` and ``grpo-train cleanup`` remove the others; the agent only lists them.

MAX_FILES = 2_000
"""Files of a checkpoint without a manifest that are looked at."""

Accuracies = Mapping[str, Mapping[int, float]]
"""Dataset to step to accuracy."""


def reasons_to_keep(
    steps: Collection[int],
    links: Mapping[str, int],
    accuracies: Accuracies | None = None,
    *,
    keep_last: int = 1,
    keep_every: int = 0,
) -> dict[int, str]:
    """The complete ``steps`` that stay, each with the reason: the newest ``keep_last``, the best evaluated one of each
    dataset, the targets of ``links`` (``latest`` and ``final``), and multiples of ``keep_every`` (0: none)."""
    newest = sorted(steps, reverse=True)[: max(1, keep_last)]
    reasons = {step: ["one of the newest" if place else "last"] for place, step in enumerate(newest)}
    for name, step in sorted(links.items()):
        if step in steps and (name, step) != ("latest", max(steps)):
            reasons.setdefault(step, []).append(f"step_{name}")
    for dataset, found in sorted((accuracies or {}).items()):
        known = [step for step in found if step in steps and math.isfinite(found[step])]
        if known:
            best = max(known, key=lambda step: (found[step], step))
            reasons.setdefault(best, []).append(f"best on {dataset} ({fraction(found[best])})")
    for step in steps:
        if keep_every > 0 and step % keep_every == 0:
            reasons.setdefault(step, []).append("milestone (run.keep_every)")
    return {step: ", ".join(words) for step, words in reasons.items()}


def accuracies_of(rows: Iterable[Mapping[str, str]]) -> dict[int, float]:
    """Step to accuracy, from the table of an evaluation."""
    found = {}
    for row in rows:
        value = number_in(row["accuracy"])
        if value is not None and math.isfinite(value) and len(row["step"]) <= 15:
            found[int(row["step"])] = value
    return found


def links_of(folder: Path) -> dict[str, int]:
    """``latest`` and ``final`` to the step that the link of a ``training_state`` points to."""
    found = {}
    for name in ("latest", "final"):
        try:
            target = os.path.basename(os.readlink(folder / f"step_{name}")).removeprefix("step_")
        except OSError:  # no such link
            continue
        if target.isascii() and target.isdecimal() and len(target) <= 18:
            found[name] = int(target)
    return found


def paths_in_use(root: Path, backbone_of: Callable[[str], str]) -> list[str]:
    """Real paths announced by the live evaluations and backups of a root, and those its runs took their weights from.

    ``backbone_of`` reads ``model.backbone`` in the text of a config. Raises Unreadable naming a damaged file, OSError
    for one that cannot be read: what is in use is then unknown, and nothing may be removed.
    """
    paths: list[str] = []
    for file in sorted([*root.glob("eval_runs/*/status.json"), *root.glob("transfers/*/status.json")]):
        status = read_object(file) or {}
        try:
            _check_liveness(status)
            if observe(status).is_live:
                paths += [os.fspath(path) for path in status.get("pending", [])]
        except (ValueError, TypeError, Unreadable) as error:
            raise Unreadable(f"{file} is damaged: {error}") from error
    for file in sorted(root.glob("training_runs/*/launch.json")):
        paths += [str(ckpt)] if (ckpt := (read_object(file) or {}).get("ckpt")) else []
    for file in sorted(root.glob("training_runs/*/config.yaml")):
        try:
            paths.append(backbone_of(file.read_text(encoding="utf-8")))
        except Exception as error:  # of any reader of YAML
            if isinstance(error, OSError):
                raise
            raise Unreadable(f"{file} is damaged: {error}") from error
    return [os.path.realpath(root / path) for path in paths]


def _check_liveness(status: dict[str, Any]) -> None:
    """Raise ValueError where :func:`observe` would take a damaged field for a missing one, and a reader for gone."""
    for key in ("pid", "pid_start"):
        fields.integer(status, key)
    if (updated_at := status.get("updated_at")) is not None:
        parse_time(str(updated_at))


def checkpoint_size(folder: Path) -> int:
    """Bytes of a checkpoint: by its manifest, without which its files are looked at. Raises OSError."""
    try:
        files = (read_json(folder / MANIFEST, finite=True) or {}).get("files")
    except OSError:  # a failing disk: read_json answers for a missing or damaged file
        files = None
    sizes = (
        [facts.get("size") if isinstance(facts, dict) else None for facts in files.values()]
        if isinstance(files, dict)
        else []
    )
    if sizes and all(type(size) is int and 0 <= size < 1 << 50 for size in sizes):
        return sum(size for size in sizes if size is not None)
    return _walked(folder)


def _walked(folder: Path) -> int:
    total = seen = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(parent, name)).st_size
            seen += 1
            if seen >= MAX_FILES:
                return total
    return total


# checkpoints that are being written or removed -------------------------------------------------------------
# The protocol between writer and reader is described in :mod:`grpo_train.train.retention`.

_WRITER = re.compile(r"\.(\d+)-(\d+)-")
"""Pid and start ticks in a :func:`hidden_name`."""


def hidden_name(step: int) -> str:
    """Name of a checkpoint that is being written or removed; it identifies the process at work."""
    pid = os.getpid()
    return f".step_{step}.{pid}-{start_ticks(pid)}-{secrets.token_hex(4)}.tmp"


def remove_hidden(run: RunDir) -> None:
    """Remove hidden directories and links whose writer is dead."""
    hidden = (path for pattern in ("", "superseded/*/") for path in run.training_state.glob(f"{pattern}.step_*.tmp"))
    for path in hidden:
        writer = _WRITER.search(path.name)
        if writer and int(writer[1]) != os.getpid() and is_alive(int(writer[1]), int(writer[2])):
            continue
        if path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            remove_tree(path)


def exists_after_removal(path: Path, patience_s: float = 10.0, *, clock: Clock = CLOCK) -> bool:
    """Whether a checkpoint (or its ``model/``, or any other directory) exists once a removal in progress has ended.

    Call it after announcing that the checkpoint is in use. A removal that a kill left unfinished is waited for
    ``patience_s`` seconds.
    """
    real = path.resolve()
    step = real.parent if real.name == "model" else real
    deadline = clock.monotonic() + patience_s
    while path.exists() and STEP_NAME.fullmatch(step.name) and any(step.parent.glob(f".{step.name}.*.tmp")):
        if clock.monotonic() > deadline:
            break
        clock.sleep(0.02)
    return path.exists()
