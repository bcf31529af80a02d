"""Landlock rulesets: the files a program may read, and the one directory it may write to.

The parent creates a ruleset once per slot and passes its descriptor to each child, which then needs a single system
call. Every right that the kernel's Landlock knows is handled, so anything not granted by a rule is denied.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from grpo_train.sandbox.syscalls import system_call

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SYM, REFER, TRUNCATE = (1 << bit for bit in (4, 5, 7, 8, 12, 13, 14))
# Bits 6 and 9 to 11 create devices, sockets and named pipes; 15 is ioctl on a device. Never granted, like EXECUTE.

FILE_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file-system rights by ABI; later ABIs added none."""
TCP_BIND_AND_CONNECT = 0b11
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
NO_LOG = 1
"""Flag of ``landlock_restrict_self``: no denials in the kernel log (ABI 7)."""


def abi() -> int:
    """The kernel's Landlock ABI; 0 without Landlock."""
    try:
        return system_call("landlock_create_ruleset", None, 0, CREATE_RULESET_VERSION)
    except OSError:
        return 0


def create_ruleset(read: Iterable[str], listed: str, write: str, version: int) -> int:
    """Create a ruleset of ABI ``version`` and return its descriptor. Raises OSError.

    Args:
        read: files and trees that can be read.
        listed: tree whose directories can be listed.
        write: tree in which files can be created, written and removed.
    """
    rights = (1 << FILE_RIGHTS_OF_ABI[min(version, 5)]) - 1
    attributes = struct.pack("<Q", rights)
    if version >= 4:
        attributes += struct.pack("<Q", TCP_BIND_AND_CONNECT)
    if version >= 6:
        attributes += struct.pack("<Q", SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = system_call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for path in read:
            _allow(ruleset, path, READ_FILE | READ_DIR, rights)
        _allow(ruleset, listed, READ_DIR, rights)
        _allow(ruleset, "/dev/null", READ_FILE | WRITE_FILE, rights)
        _allow(ruleset, write, READ_FILE | READ_DIR | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG
               | MAKE_SYM | REFER | TRUNCATE, rights)  # fmt: skip
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _allow(ruleset: int, path: str, wanted: int, handled: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no rule
    try:
        if not os.path.isdir(path):
            wanted &= READ_FILE | WRITE_FILE | TRUNCATE
        system_call("landlock_add_rule", ruleset, RULE_PATH_BENEATH, struct.pack("<Qi", wanted & handled, fd), 0)
    finally:
        os.close(fd)
