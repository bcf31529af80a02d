"""The tokens of a completion as colors and words. No Textual."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_train.run_dir.display import fraction
from grpo_train.run_dir.tokens import Token, decode_tokens

MODES = ("", "log-probability", "entropy", "ratio", "clipping")
"""What tokens are colored by; "" = not at all."""
END = "∎"
"""The token that ended the text."""


class Shade(NamedTuple):
    """A class of values, and how it is shown."""

    label: str
    tone: str = ""
    """Of the palette; "" = as other text."""
    strength: float = 0.0
    """Of the background, from 0 to 1."""
    mark: str = ""
    """Rich styles besides the color, so that it is seen without colors."""


UNKNOWN = Shade("not known", "faint")
_STRENGTHS = ((0.0, ""), (0.16, ""), (0.32, ""), (0.48, "bold"), (0.62, "bold underline"))
_PROBABILITIES = (0.9, 0.5, 0.1, 0.01)
_ENTROPIES = (0.1, 0.5, 1.0, 2.0)
_RATIOS = (0.5, 0.9, 1.1, 2.0)


def _rising(labels: str, tone: str) -> tuple[Shade, ...]:
    return tuple(Shade(label, tone if strength else "", strength, mark)
                 for label, (strength, mark) in zip(labels.split("|"), _STRENGTHS, strict=True))  # fmt: skip


SHADES: Mapping[str, tuple[Shade, ...]] = {
    "log-probability": _rising("≥.9|≥.5|≥.1|≥.01|<.01", "bad"),
    "entropy": _rising("<.1|<.5|<1|<2|≥2", "warn"),
    "ratio": (
        Shade("<.5", "key", 0.6, "italic underline"), Shade("<.9", "key", 0.3), Shade(".9–1.1"),
        Shade(">1.1", "warn", 0.3), Shade(">2", "warn", 0.6, "bold underline"),
    ),
    "clipping": (
        Shade("kept"), Shade("too low", "key", 0.45, "italic underline"),
        Shade("too high", "warn", 0.45, "bold underline"), Shade("weight 0", "bad", 0.45, "strike"),
    ),
}  # fmt: skip
"""The classes of each mode, in the order of the legend."""
TITLES = {"log-probability": "probability", "clipping": "clipped"}
"""Of the legend, where it is not the mode."""
FATES = {
    "": "not clipped", "low": "clipped: ratio too low", "high": "clipped: ratio too high",
    "masked": "weight 0 in the loss",
}  # fmt: skip


def shade_of(mode: str, token: Token) -> Shade:
    """How a token is shown."""
    shades = SHADES[mode]
    if mode == "log-probability":
        if token.logp is None:
            return UNKNOWN
        probability = math.exp(token.logp)
        return shades[sum(probability < limit for limit in _PROBABILITIES)]
    if mode == "entropy":
        return UNKNOWN if token.entropy is None else shades[sum(token.entropy >= limit for limit in _ENTROPIES)]
    if token.entropy is None:  # no pass of the trainer
        return UNKNOWN
    if mode == "ratio":
        if token.ratio is None:
            return UNKNOWN
        below, above = (
            sum(token.ratio >= limit for limit in _RATIOS[:2]),
            sum(token.ratio > limit for limit in _RATIOS[2:]),
        )
        return shades[below + above]
    return shades[list(FATES).index(token.fate)]


def legend_of(mode: str, tokens: Sequence[Token]) -> list[Shade]:
    """The classes of a mode; those that are rare, where a token has them."""
    shades = [shade for shade in SHADES[mode] if shade.mark != "strike" or any(one.fate == "masked" for one in tokens)]
    return [*shades, UNKNOWN] if any(shade_of(mode, one) is UNKNOWN for one in tokens) else shades


def values_of(token: Token) -> list[tuple[str, str]]:
    """Names and values of a token."""
    found = []
    if token.logp is not None:
        found.append(("log p", f"{_number(token.logp)} (p {_share(math.exp(token.logp))})"))
    if token.entropy is None:
        return [*found, ("entropy and ratio", "– (no gradient)")]
    found.append(("entropy", _number(token.entropy)))
    if token.ratio is not None:
        found.append(("ratio", _number(token.ratio)))
    return [*found, ("", FATES[token.fate])]


def text_of(token: Token, completion: str, is_last: bool) -> str:
    """A token's text in quotes, or why it has none."""
    if token.start == token.end:
        return "end of the completion" if is_last else "part of the next character"
    text = completion[token.start : token.end]
    return f"‘{text}’".replace("\n", "↵").replace("\t", "→") if text else "beyond what is shown"


class TokenValues(NamedTuple):
    """The tokens of a completion, or why there are none."""

    tokens: list[Token]
    problem: str = ""


class KnownTokens:
    """The decoded tokens of the samples that are shown."""

    def __init__(self) -> None:
        self._known: list[tuple[Mapping[str, Any], TokenValues]] = []

    def of(self, row: Mapping[str, Any], of_evaluation: bool) -> TokenValues:
        """The tokens of a sample."""
        for known, values in self._known:
            if known is row:
                return values
        values = _values(row, of_evaluation)
        self._known = [(row, values), *self._known[:3]]
        return values


def _values(row: Mapping[str, Any], of_evaluation: bool) -> TokenValues:
    if of_evaluation:
        return TokenValues([], "an evaluation keeps no token values")
    if row.get("discarded"):
        return TokenValues([], "no token values: no step learned from it")
    if "tokens" not in row:
        return TokenValues(
            [],
            "no token values: each update keeps those of the two groups whose rewards differ most, or of as many "
            "completions as tracking.token_rows says, and logs them with the last update of the buffer",
        )
    try:
        tokens = decode_tokens(str(row["tokens"]))
    except ValueError as error:
        return TokenValues([], f"✖ the token values cannot be read: {error}")
    return TokenValues(tokens, "" if tokens else "no token values: the completion is empty")


def _number(value: float) -> str:
    """Three digits, which is what the log has: ``-1.24``."""
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 or not value else f"{value:.2g}"


def _share(value: float) -> str:
    """``.300``, ``.0012``, ``>.999``"""
    return fraction(value) if value >= 0.1 else f"{value:.1g}".removeprefix("0")
