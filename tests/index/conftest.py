"""As in the tests of the link; temporary directories are in memory, as an index flushes what it writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.remote.conftest import _own_directories

__all__ = ["_own_directories"]


@pytest.fixture(scope="package", autouse=True)
def _in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield
