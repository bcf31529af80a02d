"""Reading the one number that an answer says, or refusing to.

"18", "18.00", "$1,800", "0018", "1e3", "−18", "3 1/2", "18 dollars" and "The answer is 18" say a number. Refused are
arithmetic ("17+1", "36/2", "17=18", "9**9"), other scales ("18%", "18 million", "18x"), hedges ("18 or 20", "not 18")
and anything with a second number: were equality looser than "said the number", a policy would learn the looseness.
Nothing is evaluated, so nothing can hang.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from math import gcd

MAX_CHARS = 300
"""A longer answer is prose, not a number."""

_CURRENCY = "$€£¥"
_MINUS = "−–‐‑﹣-"  # U+2212 and what tokenizers make of it
_NUMBER = re.compile(
    rf"""
    (?:(?P<sign>[-+])\s?)?(?:[{_CURRENCY}]\s?)?(?P<inner_sign>-?)
    (?: (?P<whole>[0-9]+)\s(?=[0-9]+/[0-9]) )?                       # the 3 of 3 1/2
    (?: (?P<top>[0-9]+)/(?P<bottom>[0-9]+)
      | (?P<grouped>[1-9][0-9]{{0,2}}(?:,[0-9]{{3}})+(?:\.[0-9]*)?)  # thousands in valid groups
      | (?P<plain>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,2}}(?![0-9]))?)
    )
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_HEDGES = """
    not never neither nor isn't isn’t aren't wasn't cannot can't don't without or either maybe perhaps possibly about
    approximately around roughly almost nearly over under above below between than least most wrong incorrect false
    except
"""
_SCALES = """
    percent percentage pct cent hundred hundreds thousand thousands million millions mil mio mn bn billion billions
    trillion trillions dozen dozens score gross half halves third thirds quarter quarters twice double triple squared
    cubed factorial plus minus times divided multiplied mod modulo choose zero one two three four five six seven eight
    nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty
    seventy eighty ninety st nd rd th
"""
_HEDGE_WORDS = frozenset(_HEDGES.split())
_SCALE_WORDS = frozenset(_SCALES.split())
_CLEAN = re.compile(r"[\s.,;:'\"’“”()!$€£¥°-]*")


def parse_number(text: str) -> Fraction | str:
    """The number that ``text`` says, exactly; or why it says none: ``ambiguous`` or ``not_numeric``."""
    if len(text) > MAX_CHARS:
        return "not_numeric"
    text = _plain(text)
    if any(unicodedata.category(character) == "No" for character in text):
        return "not_numeric"  # 18², ½
    found = _NUMBER.search(text)
    if not found:
        return "not_numeric"
    before, after = text[: found.start()], text[found.end() :]
    if any(character.isdigit() for character in before + after):
        return "ambiguous" if _is_prose(re.sub("[0-9]", "", before + after)) else "not_numeric"
    value = _value_of(found)
    if value is None:
        return "not_numeric"
    if re.search(r"[^\W_]['’]?[-(]?$", before) or re.search(r"\w\s*[-+(]\s*$", before):
        return "not_numeric"  # x18, x-18, f(18
    # A letter glued to a number, or standing alone behind it, is a variable or a scale (18x, 18 M), not a unit.
    if re.match(r"[^\W\d_](?![^\W\d_])|\s[^\W\d_](?![^\W\d_])|!|\s*\?", after) or "_" in before + after:
        return "not_numeric"
    words = {word.lower() for word in _WORD.findall(f"{before} {after}")}
    if words & _SCALE_WORDS:
        return "not_numeric"
    if words & _HEDGE_WORDS:
        return "ambiguous"
    return value if _is_prose(before) and _is_prose(after) else "not_numeric"


def last_number(text: str) -> str | None:
    """The last number said in free text, with the words around it back to the number before; None if there is none.

    The result is for :func:`parse_number`, which refuses what those words make of it: in "17+1" the last number is
    "+1" and in "18 or 20" it is "or 20", no answers; in "9 eggs for $2 make $18." it is "make $18.".
    """
    for sentence in reversed(re.split(r"(?<=[.!?])\s+|\n+", text[-4000:])):
        plain = _plain(sentence)
        numbers = list(_NUMBER.finditer(plain))
        if not numbers:
            continue
        if len(numbers) == 1:
            before, equals, after = plain.rpartition("=")
            return after.strip() if equals and after.strip() and numbers[0].start() >= len(before) else plain.strip()
        previous = plain[: numbers[-2].end()]
        segment = plain[len(previous) :]
        left, equals, right = segment.partition("=")
        # "9 + 9 = 18" is a result; "17 = 18" is a false statement that says two numbers.
        if equals and _is_prose(left):
            return right.strip() if re.search(r"[-+*/×÷]", previous[1:]) else plain.strip()
        # Glued to the number before it, or behind an operator: part of an expression, not a number of its own.
        if not re.match(r"[,;:.]?\s+(?![-+*/×÷^]\s*[0-9])|-?[^\W\d_]", segment):
            return plain.strip()
        return segment.strip()
    return None


def _plain(text: str) -> str:
    """Without the dress: emphasis, LaTeX's box and dollar signs, odd minus signs and spaces."""
    text = re.sub(rf"[{_MINUS}]", "-", text).replace("\u00a0", " ").replace("\u202f", " ")
    text = re.sub(r"\\boxed\{([^{}]*)\}|\\text\{([^{}]*)\}", lambda match: match.group(1) or match.group(2) or "", text)
    text = re.sub(r"\\\(|\\\)|\\\[|\\\]|\\[,!; ]", " ", text).replace("\\$", "$")
    text = re.sub(r"(?<![\w)*])(\*\*|\*|__|`)(?=\S)([^*`]*?)(?<=\S)\1(?![\w(*])", r"\2", text)
    return re.sub(r"\$([^$]+)\$", r"\1", text).strip()


def _value_of(found: re.Match[str]) -> Fraction | None:
    """The number of a match; None for a fraction that is really a division (36/2, 1/0)."""
    if found["sign"] and found["inner_sign"]:
        return None
    if found["bottom"]:
        top, bottom = int(found["top"]), int(found["bottom"])
        if bottom < 2 or gcd(top, bottom) != 1 or (found["whole"] and top >= bottom):
            return None
        value = Fraction(int(found["whole"] or 0)) + Fraction(top, bottom)
    else:
        value = Fraction(Decimal((found["grouped"] or found["plain"]).replace(",", "")))
    return -value if "-" in (found["sign"], found["inner_sign"]) else value


def _is_prose(text: str) -> bool:
    """Only words and punctuation: no operator, bracket or symbol that could change what the number means."""
    return bool(_CLEAN.fullmatch(_WORD.sub("", text)))
