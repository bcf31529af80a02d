"""SLURM's commands: run with a time limit; a refusal is passed on in SLURM's own words."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_train.run_dir.sessions import root_mark
from remote.protocol import RemoteError

WAIT_S = 30.0
"""A busy controller is slow to answer."""
_FIELDS = {"JobID": 20, "State": 30, "Reason": 60, "NodeList": 120, "RestartCnt": 10, "Comment": 300}
"""Columns of squeue, and their widths."""


def run_slurm(*argv: str, directory: Path | None = None, text: str | None = None) -> str:
    """Output of a command. Raises RemoteError: ``no_slurm`` where it is not installed, ``slurm`` where it refused."""
    if not shutil.which(argv[0]):
        hint = "this box is not a login node; remove 'scheduler' from boxes.yaml, or set PATH in its 'env'"
        raise RemoteError("no_slurm", f"{argv[0]} is not on PATH on this box", hint)
    try:
        done = subprocess.run(
            argv, input=text or "", capture_output=True, text=True, errors="replace", timeout=WAIT_S, cwd=directory
        )
    except subprocess.TimeoutExpired:
        raise RemoteError("slurm", f"{argv[0]} did not answer within {WAIT_S:.0f} s", "try again") from None
    except OSError as error:
        raise RemoteError("slurm", f"{argv[0]} could not be started: {error.strerror}") from error
    if done.returncode:
        words = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise RemoteError("slurm", words[:2000] or f"{argv[0]} ended with exit code {done.returncode}")
    return str(done.stdout)


def comment(root: Path, run: str, key: str = "") -> str:
    """Comment of a run's jobs: it tells whose they are, also while nothing else has recorded their id."""
    return ":".join(("grpo", root_mark(root), run, key))


@dataclass(frozen=True)
class QueuedJob:
    """A job of a run that is pending or running."""

    id: str
    state: str
    """SLURM's word, such as ``PENDING``."""
    reason: str
    """Why it is pending, such as ``Priority``."""
    nodes: str
    requeues: int
    run: str
    key: str
    """Digest of the idempotency key of the request that submitted it."""

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD")


def queue(root: Path) -> dict[str, QueuedJob]:
    """The jobs of a root that this account submitted, by run. Raises RemoteError."""
    columns = ",".join(f"{name}:{width}|" for name, width in _FIELDS.items())
    found: dict[str, QueuedJob] = {}
    for line in run_slurm("squeue", "--me", "--noheader", "--states=all", "-O", columns).splitlines():
        job = _parse(line, root_mark(root))
        if job is not None and not _has_ended(job.state) and int(job.id) >= int(getattr(found.get(job.run), "id", 0)):
            found[job.run] = job
    return found


def _parse(line: str, mark: str) -> QueuedJob | None:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) < len(_FIELDS) or not cells[0].isdigit():
        return None
    job_id, state, reason, nodes, requeues, words = cells[: len(_FIELDS)]
    program, _, rest = words.partition(":")
    root, _, rest = rest.partition(":")
    run, _, key = rest.partition(":")
    if program != "grpo" or root != mark:
        return None
    count = int(requeues) if requeues.isdigit() else 0
    return QueuedJob(job_id, state, "" if reason == "None" else reason, nodes, count, run, key)


_ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
)  # fmt: skip


def _has_ended(state: str) -> bool:
    return state.split("+")[0].split(" ")[0] in _ENDED


_NO_ANSWER_EVER = ("Invalid job id", "accounting storage is disabled", "accounting_storage/none")
"""What SLURM says of a job that its controller has forgotten, and on a cluster without accounting."""


def final_state(job_id: str) -> tuple[str | None, str]:
    """How a job ended, as SLURM says it (``OUT_OF_MEMORY``); "" where it is no longer known.

    None where it is not known yet: accounting lags behind and still has the job as running, or one of the two does not
    answer; then with its words. Accounting knows the steps, too, of which one may have run out of memory.
    """
    is_early, unasked = False, ""
    for show, *arguments in (
        ("sacct", "--noheader", "--parsable2", "--format=State", f"--jobs={job_id}"),
        ("scontrol", "-o", "show", "job", job_id),
    ):
        try:
            output = run_slurm(show, *arguments)
        except RemoteError as error:  # no accounting; a job that is forgotten; a controller that is away
            if error.code == "slurm" and not any(words in error.message for words in _NO_ANSWER_EVER):
                is_early, unasked = True, f"{show}: {error.message}"
            continue
        lines = [line for line in output.splitlines() if line.strip()]
        words = output.split() if show == "scontrol" else [f"JobState={line}" for line in lines]
        states = [word.removeprefix("JobState=").split(" ")[0] for word in words if word.startswith("JobState=")]
        if states and _has_ended(states[0]):
            return "OUT_OF_MEMORY" if "OUT_OF_MEMORY" in states else states[0], ""
        is_early |= bool(states)
    return None if is_early else "", unasked


def options_text(arguments: Sequence[str]) -> str:
    """Options as lines of a batch script."""
    return "".join(f"#SBATCH {argument}\n" for argument in arguments)
