"""Running one program as a script: its standard input and output."""

from __future__ import annotations

import math
import time

from grpo_train.sandbox.canary import canary_hits
from grpo_train.sandbox.child import Ended
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
    """Runs ``source`` in a fresh sandboxed interpreter, in a fresh directory.

    ``cpu_seconds`` is rounded up to whole seconds; five times as much wall time is allowed. ``hash_seed`` is
    PYTHONHASHSEED ("0" when not given, so that a program prints the same each time; "random" is allowed).
    ``fake_time`` starts the wall clock at that many seconds after 1970. ``max_output`` is in bytes, for standard
    output and error each; a program that writes more is ended. ``memory`` is address space in bytes.

    Thread-safe. Raises :class:`SandboxTooWeak` (see :func:`probe.isolation`) and :class:`SandboxError`; whatever
    the program does is a status.
    """
    if hash_seed is not None and hash_seed != "random" and not (hash_seed.isdecimal() and int(hash_seed) < 1 << 32):
        raise ValueError(f"hash_seed must be 'random' or a number below 2**32, got {hash_seed!r}")
    layers = isolation()
    job: dict[str, object] = {"mode": "program", "source": source, "fake_time": fake_time}
    if fake_time is not None:
        job["fake_time_code"] = interpreter().fake_time
    ended = run(layers, job, cpu_seconds, memory=memory, hash_seed=hash_seed or "0",
                stdin=stdin.encode("utf-8", "surrogatepass"), max_output=max(1, max_output))  # fmt: skip
    return ProgramResult(
        stdout=ended.stdout.decode("utf-8", "replace"),
        stderr=ended.stderr.decode("utf-8", "replace"),
        status=_status(ended),
        isolation=layers.level,
        denials=denials(ended),
        seconds=ended.wall_seconds,
    )


def _status(ended: Ended) -> Status:
    if ended.over_limit:
        return "output_limit"
    if ended.over_time:
        return "timeout"
    claimed = ended.first(b"P")
    if ended.forged or claimed is None or ended.first(b"D") is None:
        return "killed"
    return STATUSES.get(claimed.partition(b"\t")[0].decode("utf-8", "replace"), "killed")


def run(
    layers: Isolation,
    job: dict[str, object],
    cpu_seconds: float,
    *,
    busy: float = 1.0,
    memory: int = MAX_MEMORY,
    hash_seed: str = "0",
    stdin: bytes | None = None,
    max_output: int = 0,
) -> Ended:
    """Runs a job; ``busy`` times its processor time is given, in the wall time of ``cpu_seconds``. Raises
    :class:`SandboxError` when no process could be started or locked down."""
    whole = max(1, math.ceil(cpu_seconds))
    problem = ""
    for attempt in range(2):  # the second time for what passes, such as no free process
        time.sleep(RETRY_SECONDS * attempt)
        try:
            ended = run_isolated(layers, job, cpu_seconds=whole, cpu_limit=math.ceil(busy * whole), memory=memory,
                                 hash_seed=hash_seed, stdin=stdin, max_output=max_output)  # fmt: skip
        except OSError as error:
            problem = f"a program could not be run: {error}"
            continue
        if ended.first(b"R") is not None:
            return ended
        failed = ended.first(b"L")
        problem = f"its interpreter did not start (exit code {ended.exit_code}, {ended.wall_seconds:.1f} s)"
        if failed is not None:
            problem = f"the sandbox held before and does not now: {failed.decode('utf-8', 'replace')}"
    raise SandboxError(problem)


def denials(ended: Ended) -> dict[str, int]:
    """Attempts by kind: the totals if the program came to its end, else one for each kind that was reported."""
    counts: dict[str, int] = {}
    total = ended.first(b"D")
    if total is not None:
        for pair in total.decode("utf-8", "replace").split(",")[:32]:
            kind, _, count = pair.partition("=")
            if kind and count.isdecimal():
                counts[kind[:32]] = int(count[:9])
    for letter, _, content in ended.records:
        if letter == b"A" and len(counts) < 32:
            counts.setdefault(content.decode("utf-8", "replace")[:32], 1)
    if ended.forged:
        counts["result_channel"] = counts.get("result_channel", 0) + 1
    if any(canary_hits(content) for content in (ended.stdout, ended.stderr, ended.results)):
        counts["canary"] = 1
    return counts
