"""Damaged run directories: contents of files, things in place of files, arbitrary JSON."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

CONTENTS = (
    *(b"[" * 100_000, b'{"a":' * 50_000, b"", b"{", b"[1]", b'"text"', b"null", b"17", b"\x00", b"\xff\xfe\xff"),
    *(b'{"pid": 1e999}', b'{"pid": NaN}', b'{"pid": -Infinity}', b'{"pid": ' + b"9" * 400 + b"}"),
)
"""Of ``status.json`` or ``launch.json``."""
FILES = ("launch.json", "status.json", "config.yaml", "logs/train_log.jsonl", "logs/events.jsonl")


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")  # the path itself is longer than a socket's may be
    os.close(here)


NOT_FILES: dict[str, Callable[[Path], None]] = {
    "directory": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _socket,
}
"""Creates something in place of a file."""

_KEYS = st.sampled_from(
    [
        *("state", "host", "boot_id", "pid", "pid_start", "updated_at", "started_at", "error", "summary", "step"),
        *("total_steps", "reward", "time", "time/step", "superseded", "train_log.jsonl", "events.jsonl", "health"),
        *("stage", "exit_code", "restarts", "nproc", "device", "run_seconds", "event", "config_text", "training_run"),
    ]
)
_STATES = st.sampled_from(["running", "starting", "finished", "lost", "crashed", "2025-08-19T12:35:07.412Z", "NaN"])
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | _STATES
_LEAVES |= st.sampled_from([10**400, -(10**30), 2**63, os.uname().nodename if hasattr(os, "uname") else ""])
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=6), max_leaves=12
)


def arbitrary_json() -> st.SearchStrategy[bytes]:
    """JSON text, most often an object with keys that readers look for; NaN, infinities and lone surrogates included."""
    return (st.dictionaries(_KEYS, _VALUES, max_size=8) | _VALUES).map(lambda value: json.dumps(value).encode())
