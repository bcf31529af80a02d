"""Keys of objects, checked before a request or a path is made from them."""

from __future__ import annotations

import re
import secrets
import unicodedata

from grpo_train.backup.store import StoreError

MAX_KEY_BYTES = 1_024
"""The limit of S3."""
MAX_NAME_BYTES = 255
"""The limit of file systems."""

_PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial")


def check_key(key: str) -> str:
    """The key itself. Raises StoreError (``bad_name``) for a key that leads out of a store or that one cannot hold."""
    if problem := _problem_of(key):
        raise StoreError(f"invalid name {key!r}: {problem}", code="bad_name")
    return key


def is_key(key: str) -> bool:
    """Whether a file name in a store can be an object's; other files are not ours."""
    return not _problem_of(key)


def check_prefix(prefix: str) -> str:
    """The start of a key, or "". Raises StoreError (``bad_name``)."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def partial_name() -> str:
    """New hidden name for a file that is being written."""
    return f".{secrets.token_hex(8)}.partial"


def is_partial(name: str) -> bool:
    """Whether a file name is a :func:`partial_name`."""
    return bool(_PARTIAL.fullmatch(name))


def _problem_of(key: str) -> str:
    names = key.split("/")
    if key.startswith("/"):
        return "it is absolute"
    if "" in names or "." in names or ".." in names:
        return "'.', '..' and empty names are not allowed between slashes"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in key):
        return "control characters and invalid UTF-8 are not allowed"
    if len(key.encode()) > MAX_KEY_BYTES or any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        return f"the limits are {MAX_KEY_BYTES} bytes, and {MAX_NAME_BYTES} between slashes"
    if any(is_partial(name) for name in names):
        return "the name is reserved for files that are being written"
    return ""
