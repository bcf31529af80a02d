"""Overlap between texts, to find training problems that are also test problems."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

NGRAM = 13
"""Length in words of a run that indicates copying if two texts share it (Brown et al. 2020, arXiv 2005.14165,
appendix C)."""


_QUOTES = str.maketrans(dict.fromkeys("’‘‛ʼ", "'") | dict.fromkeys("“”‟„", '"'))


def normal_text(text: str) -> str:
    """Text in lower case with single spaces, composed characters (NFC) and straight quotation marks.

    Texts that mean different things stay different: "10²" and "102", "Maße" and "Masse".
    """
    return " ".join(unicodedata.normalize("NFC", text).translate(_QUOTES).lower().split())


def ngrams(text: str) -> set[tuple[str, ...]]:
    """All runs of :data:`NGRAM` words without punctuation; none if the text is shorter."""
    words = re.findall(r"\w+", normal_text(text))
    return {tuple(words[first : first + NGRAM]) for first in range(len(words) - NGRAM + 1)}


def sharing(texts: Iterable[str], others: Iterable[str]) -> list[int]:
    """Indices of the ``texts`` that share a run of :data:`NGRAM` words with any of the ``others``."""
    known = {ngram for other in others for ngram in ngrams(other)}
    return [index for index, text in enumerate(texts) if not known.isdisjoint(ngrams(text))]
