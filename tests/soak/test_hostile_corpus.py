"""The corpus of hostile and honest programs: as this user, as an ordinary user, as root, without namespaces.

Part of ``make soak``; tests/sandbox has one program for each limit.
"""

from __future__ import annotations

import os

import pytest

from grpo_train.sandbox import isolation
from tests.sandbox.hostile.trial import CORPUS, run_corpus
from tests.sandbox.hostile.users import AS_NOBODY, AS_ROOT, NOBODY, trial


@pytest.mark.timeout(600)
def test_corpus_as_this_user() -> None:
    assert isolation().level in ("full", "strong")
    assert run_corpus(CORPUS, threads=4) == []


@pytest.mark.timeout(600)
def test_corpus_without_namespaces() -> None:
    """As on Ubuntu 24.04 and in containers, always as an ordinary user."""
    found = trial(AS_NOBODY if os.geteuid() == 0 else [], "--without-namespaces")
    assert (found["level"], found["problems"]) == ("strong", [])
    assert found["user"] != 0


@pytest.mark.timeout(600)
def test_corpus_as_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("same as test_corpus_as_this_user for an ordinary user")
    found = trial(AS_NOBODY)
    assert (found["user"], found["problems"]) == (NOBODY, [])
    assert found["level"] in ("full", "strong")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("namespaces", [[], ["--as-root"]])
def test_escapes_as_root_with_an_unused_uid(namespaces: list[str]) -> None:
    """Also on machines where only root may create namespaces."""
    if os.geteuid() != 0:
        pytest.skip("not root")
    if namespaces and isolation().level != "full":
        pytest.skip("root cannot create namespaces on this machine")
    found = trial(AS_ROOT, "--kinds", "escape,honest", *namespaces)
    assert (found["user"], found["problems"]) == (0, [])
    assert f"uid {NOBODY}" in str(found["layers"])
