"""Keys of objects, checked before a request or a path is made from them."""

from __future__ import annotations

import re
import secrets

from grpo_train.backup.store import StoreError

MAX_KEY_BYTES = 1_024
"""The limit of S3."""
MAX_NAME_BYTES = 255
"""The limit of file systems."""

_PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial")
_RESERVED = re.compile(rf"(?:^|/){_PARTIAL.pattern}(?:/|\Z)")
_DOTS = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Unicode's categories Cc and Cs."""


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
    """Three patterns and two lengths: every key of a listing and of a manifest is checked."""
    if key.startswith("/"):
        return "it is absolute"
    if _DOTS.search(key):
        return "'.', '..' and empty names are not allowed between slashes"
    if _CONTROL.search(key):
        return "control characters and invalid UTF-8 are not allowed"
    length = len(key.encode())
    if length > MAX_KEY_BYTES or (
        length > MAX_NAME_BYTES and any(len(name.encode()) > MAX_NAME_BYTES for name in key.split("/"))
    ):
        return f"the limits are {MAX_KEY_BYTES} bytes, and {MAX_NAME_BYTES} between slashes"
    if _RESERVED.search(key):
        return "the name is reserved for files that are being written"
    return ""
