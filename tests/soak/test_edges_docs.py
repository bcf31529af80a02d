"""The console blocks that are marked ``<!-- slow: REASON -->``: see :mod:`tests.docs.test_pages`."""

from __future__ import annotations

import pytest

from tests.docs.pages import PAGES, SLOW, blocks_of
from tests.docs.test_pages import made
from tests.docs.worlds import World

__all__ = ["made"]


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.mark == SLOW for block in blocks_of(page))])
def test_slow_blocks_run(made: World, page: str) -> None:
    with made.reader(page) as reader:
        wrong = reader.follow(page, slow=True)
    assert not wrong, "\n\n".join(wrong)
