"""Hostile and honest programs: one for each limit, every attack on the verdict, and all escapes as each kind of user.

The escapes are made in one program. ``tests/soak`` runs the whole corpus as each user, and each escape in its own one.
"""

from __future__ import annotations

import os

import pytest

from grpo_train.sandbox import isolation
from tests.sandbox.hostile.trial import CORPUS, ESCAPES, SAMPLE, run_corpus
from tests.sandbox.hostile.users import AS_NOBODY, AS_ROOT, NOBODY, trial


def test_the_corpus_is_complete() -> None:
    names = [program.name for program in CORPUS]
    assert len(set(names)) == len(names)
    kinds = {
        kind: sum(program.kind == kind for program in CORPUS) for kind in ("verdict", "resource", "escape", "honest")
    }
    assert min(kinds.values()) >= 20
    assert sum(kinds.values()) == len(CORPUS)


def test_attacks_as_this_user() -> None:
    assert isolation().level in ("full", "strong")
    assert run_corpus(SAMPLE, 4, ESCAPES) == []


def test_attacks_without_namespaces() -> None:
    """As on Ubuntu 24.04 and in containers, always as an ordinary user."""
    found = trial(
        AS_NOBODY if os.geteuid() == 0 else [], "--sample", "--kinds", "resource,escape", "--without-namespaces"
    )
    assert (found["level"], found["problems"]) == ("strong", [])
    assert found["user"] != 0


def test_escapes_as_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("same as test_attacks_as_this_user for an ordinary user")
    found = trial(AS_NOBODY, "--sample", "--kinds", "escape")
    assert (found["user"], found["problems"]) == (NOBODY, [])
    assert found["level"] in ("full", "strong")


@pytest.mark.parametrize("namespaces", [[], ["--as-root"]])
def test_escapes_as_root_with_an_unused_uid(namespaces: list[str]) -> None:
    """Also on machines where only root may create namespaces."""
    if os.geteuid() != 0:
        pytest.skip("not root")
    if namespaces and isolation().level != "full":
        pytest.skip("root cannot create namespaces on this machine")
    found = trial(AS_ROOT, "--sample", "--kinds", "escape", *namespaces)
    assert (found["user"], found["problems"]) == (0, [])
    assert f"uid {NOBODY}" in str(found["layers"])
