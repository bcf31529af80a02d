"""The bytes of a completion's tokens."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.run_dir.tokens import FATES, UNKNOWN, decode_tokens, encode_tokens

TOKENS = st.tuples(
    st.one_of(st.integers(0, 40), st.integers(0, 0xFFFF)), *[st.integers(0, 255)] * 3, st.integers(0, 3), st.booleans(),
)  # fmt: skip


@given(st.lists(TOKENS, max_size=20))
def test_tokens_round_trip(tokens: list[tuple[int, int, int, int, int, bool]]) -> None:
    lengths, logps, entropies, ratios, fates, written = map(list, zip(*tokens, strict=True)) if tokens else [[]] * 6
    text = encode_tokens(lengths, bytes(logps), bytes(entropies), bytes(ratios), fates, written)
    found = decode_tokens(text)
    assert [one.end - one.start for one in found] == lengths
    assert [FATES.index(one.fate) for one in found] == fates
    assert [one.is_written for one in found] == written
    for codes, name, sign in ((logps, "logp", -1), (entropies, "entropy", 1), (ratios, "ratio", 1)):
        values = [getattr(one, name) for one in found]
        assert [value is None for value in values] == [code == UNKNOWN for code in codes]
        known = sorted((code, sign * value) for code, value in zip(codes, values, strict=True) if value is not None)
        assert known == sorted(known, key=lambda pair: pair[1])
    assert len(text) <= 8 + 16 / 3 * len(lengths) + 8 / 3 * sum(length >= 31 for length in lengths)


@given(st.one_of(st.text(max_size=60), st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())))
def test_anything_else_is_an_error(text: str) -> None:
    try:
        tokens = decode_tokens(text)
    except ValueError:
        return
    assert all(0 <= one.start <= one.end for one in tokens)


def test_damage_is_an_error() -> None:
    whole = encode_tokens([1, 40], b"ab", b"ab", b"ab", [0, 0])
    for text in (whole[:-4], whole + "AAAA", "é", "AAA"):
        with pytest.raises(ValueError, match=r"tokens|base64|ascii|ASCII"):
            decode_tokens(text)
