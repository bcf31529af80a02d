"""The page of a report on its way to the laptop."""

from __future__ import annotations

import base64
import zlib

import pytest

from remote.protocol import box
from remote.protocol.box import pack_page, unpack_page


def test_a_page_arrives_as_it_was() -> None:
    page = bytes(range(256)) * 1_000
    packed = pack_page(page)
    assert len(packed) < len(page) / 10
    assert unpack_page({"page": packed}) == {"page": page}


def test_a_damaged_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "MAX_PAGE", 1_000)
    cut = base64.b64encode(zlib.compress(b"x" * 900)[:-4]).decode()
    for packed in ("?", "AAAA", "", cut, pack_page(b"x" * 1_001)):
        with pytest.raises(ValueError, match="'page' is"):
            unpack_page({"page": packed})
