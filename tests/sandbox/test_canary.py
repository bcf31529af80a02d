"""Detection of the secret in any of its forms."""

from __future__ import annotations

import base64
import os

from grpo_train.sandbox import (
    run_program,
    run_tests,
)
from grpo_train.sandbox.canary import VARIABLE, canary, canary_hits


def test_the_secret_is_detected_in_all_forms() -> None:
    secret = canary()
    assert os.environ[VARIABLE] == secret
    assert not canary_hits("nothing")
    for shown in (secret, f"x{secret}y", secret[::-1], secret.encode().hex()):
        assert canary_hits(shown)
    for before in ("", "a", "ab"):
        assert canary_hits(base64.b64encode((before + secret).encode()))
    assert run_program(f"print({secret!r})").denials == {"canary": 1}
    assert run_tests(f"def f(): return {secret!r}", ["assert f() == 1"]).denials == {"canary": 1}
