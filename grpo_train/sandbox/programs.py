"""Run one program as a script with standard input and output."""

from __future__ import annotations

import math
import time

from grpo_train.sandbox.canary import canary_hits
from grpo_train.sandbox.child import ChildOutcome
from grpo_train.sandbox.interpreter import interpreter
from grpo_train.sandbox.layers import MAX_MEMORY, Isolation, run_isolated
from grpo_train.sandbox.probe import isolation
from grpo_train.sandbox.results import ProgramResult, SandboxError, Status

MAX_OUTPUT = 1 << 20
RETRY_SECONDS = 0.1
STATUSES: dict[str, Status] = {"ok": "ok", "syntax_error": "syntax_error", "runtime_error": "runtime_error",
                               "memory": "memory"}  # fmt: skip


def run_program(
    source: str,
    stdin: str = "",
    cpu_seconds: float = 3.0,
    *,
    hash_seed: str | None = None,
    fake_time: float | None = None,
    max_output: int = MAX_OUTPUT,
    memory: int = MAX_MEMORY,
) -> ProgramResult:
    """Run ``source`` in a fresh sandboxed interpreter, in a fresh directory.

    Args:
        cpu_seconds: CPU time, rounded up to whole seconds; the wall-time limit is five times that.
        hash_seed: PYTHONHASHSEED, a number or "random"; default "0", so that the output is reproducible.
        fake_time: start of the wall clock in seconds since 1970.
        max_output: bytes of standard output and of standard error; a program that writes more is killed.
        memory: address space in bytes.

    Thread-safe. Raises :class:`SandboxTooWeak` (see :func:`probe.isolation`) and :class:`SandboxError`; anything the
    program does results in a status.
    """
    if hash_seed is not None and hash_seed != "random" and not (hash_seed.isdecimal() and int(hash_seed) < 1 << 32):
        raise ValueError(f"hash_seed must be 'random' or a number below 2**32, got {hash_seed!r}")
    layers = isolation()
    job: dict[str, object] = {"mode": "program", "source": source, "fake_time": fake_time}
    if fake_time is not None:
        job["fake_time_code"] = interpreter().fake_time
    outcome = run(layers, job, cpu_seconds, memory=memory, hash_seed=hash_seed or "0",
                stdin=stdin.encode("utf-8", "surrogatepass"), max_output=max(1, max_output))  # fmt: skip
    return ProgramResult(
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=outcome.stderr.decode("utf-8", "replace"),
        status=_status(outcome),
        isolation=layers.level,
        denials=reported_denials(outcome),
        seconds=outcome.wall_seconds,
    )


def _status(outcome: ChildOutcome) -> Status:
    if outcome.over_limit:
        return "output_limit"
    if outcome.over_time:
        return "timeout"
    claimed = outcome.first(b"P")
    if outcome.forged or claimed is None or outcome.first(b"D") is None:
        return "killed"
    return STATUSES.get(claimed.partition(b"\t")[0].decode("utf-8", "replace"), "killed")


def run(
    layers: Isolation,
    job: dict[str, object],
    cpu_seconds: float,
    *,
    contention: float = 1.0,
    memory: int = MAX_MEMORY,
    hash_seed: str = "0",
    stdin: bytes | None = None,
    max_output: int = 0,
) -> ChildOutcome:
    """Run a job with ``contention`` times ``cpu_seconds`` of CPU time, in the wall time of ``cpu_seconds``.

    Raises :class:`SandboxError` if no process could be started or locked down.
    """
    whole = max(1, math.ceil(cpu_seconds))
    problem = ""
    for attempt in range(2):  # retry transient failures, such as no free process
        time.sleep(RETRY_SECONDS * attempt)
        try:
            outcome = run_isolated(
                layers,
                job,
                cpu_seconds=whole,
                cpu_limit=math.ceil(contention * whole),
                memory=memory,
                hash_seed=hash_seed,
                stdin=stdin,
                max_output=max_output,
            )
        except OSError as error:
            problem = f"cannot run a program: {error}"
            continue
        if outcome.first(b"R") is not None:
            return outcome
        failed = outcome.first(b"L")
        problem = (
            f"the sandboxed interpreter did not start (exit code {outcome.exit_code}, {outcome.wall_seconds:.1f} s)"
        )
        if failed is not None:
            problem = f"the sandbox worked earlier but now fails: {failed.decode('utf-8', 'replace')}"
    raise SandboxError(problem)


def reported_denials(outcome: ChildOutcome) -> dict[str, int]:
    """Attempts by kind: totals if the program finished, else one for each reported kind."""
    counts: dict[str, int] = {}
    total = outcome.first(b"D")
    if total is not None:
        for pair in total.decode("utf-8", "replace").split(",")[:32]:
            kind, _, count = pair.partition("=")
            if kind and count.isdecimal():
                counts[kind[:32]] = int(count[:9])
    for letter, _, content in outcome.records:
        if letter == b"A" and len(counts) < 32:
            counts.setdefault(content.decode("utf-8", "replace")[:32], 1)
    if outcome.forged:
        counts["result_channel"] = counts.get("result_channel", 0) + 1
    if any(canary_hits(content) for content in (outcome.stdout, outcome.stderr, outcome.results)):
        counts["canary"] = 1
    return counts
