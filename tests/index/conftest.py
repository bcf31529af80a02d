"""Each test's bundle and caches are its own, as in the tests of the link."""

from tests.remote.conftest import _own_directories

__all__ = ["_own_directories"]
