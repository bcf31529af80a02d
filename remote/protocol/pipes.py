"""Pipes to and from ssh and sshd."""

from __future__ import annotations

PIPE_BYTES = 1 << 20
"""Size of a pipe, where the system allows it (Linux; 64 KiB is its default, 1 MiB what any user may have)."""


def widen(descriptor: int) -> None:
    """Let a pipe hold more, so that its two ends wait for each other less. Other descriptors stay as they are."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):  # another system, no pipe, or a user with many pipes
        return
