"""What the processes of a stage are doing: state, wait channel, and stacks in ``console.log``. Linux. Torch-free."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from grpo_train.run_dir.processes import find_by_run_id, run_id_of, signal_quietly, variable_in
from grpo_train.supervisor.journal import Journal

WORDS = {"R": "running", "S": "sleeping", "D": "blocked in the kernel", "T": "stopped", "t": "traced", "Z": "ended"}
NO_HANDLER = frozenset("DTtZ")
"""States in which a process runs no signal handler."""
ANSWER_S, QUIET_S = 3.0, 0.3
"""Time for a process to print its stacks, and the silence after which they count as complete."""


def show_stacks(journal: Journal) -> list[dict[str, Any]]:
    """Have every process of the run print its stacks; returns pid, rank, state and wait channel of each.

    A process that runs no handler, or has none, is described from ``/proc``.
    """
    found = []
    for pid in sorted(find_by_run_id(run_id_of(journal.run.path))):
        facts = _facts(pid)
        if facts is None:
            continue
        found.append(facts)
        answers = facts["state"] not in NO_HANDLER and _catches(pid, signal.SIGUSR2)
        journal.say(f"{in_words(facts)}{'; its stacks:' if answers else ''}")
        if answers and signal_quietly(pid, signal.SIGUSR2):
            _await_output(journal)
    return found


def in_words(facts: dict[str, Any]) -> str:
    """A process in words: ``rank 0 (pid 12, worker): state T (stopped), waiting in do_signal_stop``."""
    rank = "" if facts["rank"] is None else f"rank {facts['rank']} "
    waiting = f", waiting in {facts['wchan']}" if facts["wchan"] else ""
    state = f"state {facts['state']} ({WORDS.get(facts['state'], 'unknown')})"
    return f"{rank}(pid {facts['pid']}, {facts['command']}): {state}{waiting}".lstrip()


def _facts(pid: int) -> dict[str, Any] | None:
    folder = Path(f"/proc/{pid}")
    try:
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, IndexError):
        return None
    try:
        wchan = (folder / "wchan").read_text().strip("0\n ")
    except OSError:
        wchan = ""
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name
    rank = variable_in(pid, "RANK")
    number = int(rank) if rank.isdigit() else 0 if module == "grpo_train.train" else None
    return {"pid": pid, "rank": number, "state": state, "wchan": wchan, "command": module}


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    except (OSError, StopIteration, IndexError):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def _await_output(journal: Journal) -> None:
    """Wait until the stage has printed something and is quiet again, or for ANSWER_S."""
    clock = journal.clock
    deadline = clock.monotonic() + ANSWER_S
    before, printed, quiet_since = journal.printed, journal.printed, clock.monotonic()
    while (now := clock.monotonic()) < deadline:
        if journal.printed != printed:
            printed, quiet_since = journal.printed, now
        elif printed != before and now - quiet_since >= QUIET_S:
            return
        clock.sleep(0.02)
