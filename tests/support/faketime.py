"""Processes whose clock is set at any time, through libfaketime. The machine's clock stays as it is."""

from __future__ import annotations

from pathlib import Path

BROKEN = b"\0clock_nanosleep\0"
"""libfaketime 0.9.10 miscalculates a sleep until a time of the monotonic clock, as Python does it: EINVAL."""


def faked_clock(file: Path) -> dict[str, str]:
    """Environment of processes whose clock is ahead by what a file says, such as ``+3600s``; timers are not affected.

    A library beside the file is loaded into them.
    """
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
    assert library, "libfaketime is not installed: sudo apt-get install -y faketime"
    own = file.with_name(library.name)
    own.write_bytes(library.read_bytes().replace(BROKEN, BROKEN.replace(b"c", b"x", 1), 1))  # exported no more
    return {
        "LD_PRELOAD": str(own),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def forget_clocks() -> None:
    """Remove what libfaketime leaves in shared memory of processes that were killed."""
    for file in Path("/dev/shm").glob("*faketime_s*_*"):
        if not Path("/proc", file.name.rpartition("_")[2]).exists():
            file.unlink(missing_ok=True)
