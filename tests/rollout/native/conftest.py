"""Both places of the keys and values of prompts."""

from __future__ import annotations

import pytest

from grpo_train.rollout.native import backend as native


@pytest.fixture(params=["shared", "copied"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Completions share the keys and values of their prompts wherever they can, or nowhere."""
    monkeypatch.setitem(native.SHARE_FROM, "cpu", 0 if request.param == "shared" else 10**9)
    return str(request.param)
