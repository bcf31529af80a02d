"""Bringing code to a box, on a connection for copies (:mod:`remote.protocol.copies`).

::

    client -> agent   {"op": "code"}
    agent -> client   {"known": [COMMIT, …]}
    client -> agent   {"commit": …, "patch": SHA-256 or ""}, files (BUNDLE and PATCH, as needed), end
    agent -> client   what it has, end; client -> agent: bytes, end; agent -> client: {"path", "needs_setup"}

With ``code: clone`` the agent pulls: its first line is ``{"path", "commit"}``, and the last.
"""

from __future__ import annotations

CLONE = "clone"
THEN, NOW = "then", "now"
"""What a resume may take where the code differs: that of the run, or what was synced last."""
BUNDLE, PATCH = "commits.bundle", "changes.patch"
