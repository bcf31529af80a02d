"""A secret that only the parent can read: a program that shows it has escaped.

It is in a file of the parent's workspace and in an environment variable.
"""

from __future__ import annotations

import base64
import os
import secrets

VARIABLE = "GRPO_SANDBOX_CANARY"


def canary() -> str:
    """This process's secret, inherited by child processes of the trainer."""
    return os.environ.setdefault(VARIABLE, f"canary-{secrets.token_hex(16)}")


def canary_hits(text: str | bytes) -> bool:
    """Whether ``text`` contains the secret: as it is, reversed, in hexadecimal or in base64."""
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    secret = canary().encode()
    forms = [secret, secret[::-1], secret.hex().encode()]
    # In base64 the middle of the secret has one of three forms, depending on the bytes before it.
    forms += [base64.b64encode(b"x" * shift + secret)[4:-4] for shift in range(3)]
    return any(form in content for form in forms)
