"""The fixtures of the link's other tests."""

from __future__ import annotations

import os
import random
import secrets

import pytest

from tests.remote.conftest import _own_directories, box, proxy, root, ssh_box, sshd, tmux_socket

__all__ = ["_own_directories", "box", "chance", "proxy", "root", "ssh_box", "sshd", "tmux_socket"]


@pytest.fixture(scope="module")
def chance() -> random.Random:
    """Dice whose seed is printed; LINK_SEED repeats it."""
    seed = os.environ.get("LINK_SEED") or secrets.token_hex(4)
    print(f"LINK_SEED={seed}")
    return random.Random(seed)
