"""The corpus of hostile and honest programs: as this user, as an ordinary user, as root, without namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from grpo_train.sandbox import isolation
from tests.conftest import REPOSITORY
from tests.sandbox.hostile.trial import CORPUS, run_corpus

NOBODY = 65534
TRIAL = [sys.executable, "-m", "tests.sandbox.hostile.trial"]
AS_ROOT = [sys.executable, "-m", "tests.sandbox.hostile.identity", "0"]
AS_NOBODY = [*AS_ROOT[:-1], str(NOBODY)]


def test_the_corpus_is_complete() -> None:
    names = [program.name for program in CORPUS]
    assert len(set(names)) == len(names)
    kinds = {
        kind: sum(program.kind == kind for program in CORPUS) for kind in ("verdict", "resource", "escape", "honest")
    }
    assert min(kinds.values()) >= 20
    assert sum(kinds.values()) == len(CORPUS)


@pytest.mark.timeout(600)
def test_corpus_as_this_user() -> None:
    assert isolation().level in ("full", "strong")
    assert run_corpus(CORPUS, threads=4) == []


def trial(command: list[str]) -> dict[str, object]:
    """Result of a trial in another process."""
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=500,
                          env={**os.environ, "TMPDIR": "/tmp"})  # fmt: skip
    assert done.stdout, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(600)
def test_corpus_without_namespaces() -> None:
    """As on Ubuntu 24.04 and in containers, always as an ordinary user."""
    found = trial([*(AS_NOBODY if os.geteuid() == 0 else []), *TRIAL, "--without-namespaces"])
    assert (found["level"], found["problems"]) == ("strong", [])
    assert found["user"] != 0


@pytest.mark.timeout(600)
def test_corpus_as_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("same as test_corpus_as_this_user for an ordinary user")
    found = trial([*AS_NOBODY, *TRIAL])
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
    found = trial([*AS_ROOT, *TRIAL, "--kinds", "escape,honest", *namespaces])
    assert (found["user"], found["problems"]) == (0, [])
    assert f"uid {NOBODY}" in str(found["layers"])
