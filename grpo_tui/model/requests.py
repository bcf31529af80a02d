"""What the forms send: requests of the link's table of operations. No Textual, no sockets."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any

from remote.protocol.operations import EvaluateRequest, LaunchRequest, ResumeRequest

Request = LaunchRequest | EvaluateRequest | ResumeRequest


def new_idempotency_key() -> str:
    """A key that makes a repeated launch (a double Enter, a broken link) a no-op."""
    return secrets.token_hex(12)


def parameters(request: Request, dry_run: bool) -> dict[str, Any]:
    """The fields that were filled in; the box has defaults for the others."""
    given = {name: value for name, value in asdict(request).items() if value not in ("", None, [])}
    return {**given, "dry_run": dry_run}
