"""A secret that lies in reach of the parent only: whoever shows it has got out.

It is in a file of the parent's working space and in an environment variable. A program that prints it, or returns it,
has read what it must not.
"""

from __future__ import annotations

import base64
import os
import secrets

VARIABLE = "GRPO_SANDBOX_CANARY"


def canary() -> str:
    """This process's secret; child processes of the trainer inherit it."""
    return os.environ.setdefault(VARIABLE, f"canary-{secrets.token_hex(16)}")


def canary_hits(text: str | bytes) -> bool:
    """Does ``text`` show the secret: as it is, reversed, in hexadecimal or in base 64?"""
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    secret = canary().encode()
    forms = [secret, secret[::-1], secret.hex().encode()]
    # In base 64 the middle of the secret looks one of three ways, by what stands before it.
    forms += [base64.b64encode(b"x" * shift + secret)[4:-4] for shift in range(3)]
    return any(form in content for form in forms)
