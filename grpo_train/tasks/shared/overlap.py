"""Whether one text occurs in another: what must not be in both the training and the test problems."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

NGRAM = 13
"""Words in a row that two texts share only if one was copied (Brown et al. 2020, arXiv 2005.14165, appendix C)."""


def normal_text(text: str) -> str:
    """Lower case, one space between words, and no difference between spellings of one character."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def ngrams(text: str, length: int = NGRAM) -> set[tuple[str, ...]]:
    """All runs of ``length`` words, punctuation left out; none where a text is shorter."""
    words = re.findall(r"\w+", normal_text(text))
    return {tuple(words[first : first + length]) for first in range(len(words) - length + 1)}


def sharing(texts: Iterable[str], others: Iterable[str], length: int = NGRAM) -> list[int]:
    """Positions of the ``texts`` that share a run of ``length`` words with any of the ``others``."""
    known = {ngram for other in others for ngram in ngrams(other, length)}
    return [position for position, text in enumerate(texts) if not known.isdisjoint(ngrams(text, length))]
