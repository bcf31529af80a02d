"""Parser for the one number in an answer.

Accepted: "18", "18.00", "$1,800", "0018", "1e3", "−18", "negative 18", "3 1/2", "18 dollars", "$18 a day" and "The
answer is 18". Rejected: arithmetic ("17+1", "36/2", "17=18", "9**9", "-(18)"), other scales ("18%", "18 million",
"18x", "18 tenths", "root of 18"), hedges ("18 or 20", "not 18", "anything but 18") and any second number, because a
policy would learn to exploit a looser rule. Nothing is evaluated, so nothing can hang.
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
_MINUS = "−–‐‑﹣-"  # U+2212 and its variants from tokenizers
_NUMBER = re.compile(
    rf"""
    (?:(?P<sign>[-+])[ ]*)?(?:[{_CURRENCY}]\s?)?(?P<inner_sign>-?)
    (?: (?P<whole>[0-9]+)\s(?=[0-9]+/[0-9]) )?                       # the 3 of 3 1/2
    (?: (?P<top>[0-9]+)/(?P<bottom_sign>-?)(?P<bottom>[0-9]+)
      | (?P<grouped>[1-9][0-9]{{0,2}}(?:,[0-9]{{3}})+(?:\.[0-9]*)?)  # thousands in valid groups
      | (?P<plain>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,2}}(?![0-9]))?)
    )
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u2060\ufeff]")
_HEDGES = """
    not never neither nor cannot without or either maybe perhaps possibly about approximately around roughly almost
    nearly over under above below between than least most wrong incorrect false untrue except but anything unlikely
    hardly barely scarcely doubt nicht kein keine pas não не
"""
"""And every word that ends in n't."""
_SCALES = """
    percent percentage pct cent ppm ppb mille permille hundred hundreds thousand thousands thou grand lakh lakhs crore
    crores million millions mil mio mn bn billion billions milliard milliarden mrd trillion trillions dozen dozens score
    gross tens half halves third thirds quarter quarters fourths fifth fifths sixth sixths seventh sevenths eighth
    eighths ninth ninths tenth tenths sixteenths hundredth hundredths thousandth thousandths millionths twice double
    triple squared cubed factorial root sqrt log ln exp sin cos tan pi inverse reciprocal opposite multiple multiples
    power plus minus times divided multiplied mod modulo choose zero one two three four five six seven eight nine ten
    eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy
    eighty ninety st nd rd th
"""
_UNITS = """
    mm millimeter millimetre | cm centimeter centimetre | meter metre | km kilometer kilometre | in inch inche | ft foot
    feet | yd yard | mi mile | mg milligram | gram gramme | kg kilogram kilo | lb pound £ | oz ounce | ton tonne | ml
    milliliter millilitre | liter litre | gal gallon | second sec | minute min | hour hr | day | week | month | year yr
    | degree ° | °c celsius | °f fahrenheit | radian rad | dollar usd | cent ¢ | euro eur € | yen ¥ | mph
"""
_COUNTED = {"times", "quarters", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
"""Scales that free text has beside a number: "26 times", "20 quarters", "$140 for two pairs"."""
_HEDGE_WORDS = frozenset(_HEDGES.split())
_SCALE_WORDS = frozenset(_SCALES.split())
_UNIT_NAMES = {name: names.split()[0] for names in _UNITS.split("|") for name in names.split()}
_LETTER_UNITS = {"m": "meter", "s": "second", "g": "gram", "h": "hour", "l": "liter"}
_CLEAN = re.compile(r"[\s.,;:'\"“”()!$€£¥°-]*")
_RATE = re.compile(
    r"^/(?=(?:second|sec|minute|min|hour|hr|day|week|month|year|person|piece|item|unit)s?\b)|(?<=[a-z])/(?=[a-z])"
)
_OPERAND_BEFORE = re.compile(
    r"""
    [^\W_]'?[-(]?$          # x18, x-18, f(18
    | \w\s*[-+(]\s*$        # x - 18 with its sign not part of the number
    | [-+][\s($€£¥'"“]*$    # -(18), and a minus sign on the line before
    """,
    re.VERBOSE,
)
_OPERAND_AFTER = re.compile(
    r"""
    [^\W\d_](?![^\W\d_])                       # 18x
    | \s(?!a\s[^\W\d_]{2})[^\W\d_](?![^\W\d_])  # 18 M, but "18 a day"
    | \(                                         # 18(x)
    | -\s|\s+-|-$|-[^\W\d_](?![^\W\d_])          # 18 - tax, 18-x, and 18- as accountants write -18; but "18-inch"
    | !|\s*\?
    """,
    re.VERBOSE,
)


def parse_number(text: str, *, prose: bool = False) -> Fraction | str:
    """The exact number in ``text``, or the reason for rejecting it: ``ambiguous`` or ``not_numeric``.

    With ``prose`` the text is a sentence from free text, and only words near the number can reject it: "The last two
    people lost 28 kg, more than Tom" is 28.
    """
    if len(text) > MAX_CHARS:
        return "not_numeric"
    text = _plain(text)
    if any(unicodedata.numeric(character, None) is not None and character not in "0123456789" for character in text):
        return "not_numeric"  # 18², ½, １８, 18百万
    found = _NUMBER.search(text)
    if not found:
        return "not_numeric"
    before, after = text[: found.start()], _RATE.sub(" per ", text[found.end() :])
    if re.search("[0-9]", before + after):
        return "ambiguous" if _is_prose(re.sub("[0-9]", "", before + after)) else "not_numeric"
    value = _value_of(found)
    if value is None or "_" in before + after or _OPERAND_BEFORE.search(before) or _OPERAND_AFTER.match(after):
        return "not_numeric"
    if found["sign"] and re.search(r"(?<![^\W\d_])[^\W\d_]\s+$", before):
        return "not_numeric"  # x -18
    words_before, words_after = (_WORD.findall(part.lower()) for part in (before, after))
    scales = {*words_before[-2:], *words_after[:2]} - _COUNTED if prose else {*words_before, *words_after}
    if scales & _SCALE_WORDS or (prose and re.search(r"\band (a|one) (half|third|quarter)\b|\bbelow zero\b", after)):
        return "not_numeric"
    hedges = {*words_before[-5:], *words_after[:1]} if prose else {*words_before, *words_after}
    if hedges & _HEDGE_WORDS or any(word.endswith("n't") for word in hedges):
        return "ambiguous"
    return value if _is_prose(before) and _is_prose(after) else "not_numeric"


def units_differ(one: str, other: str) -> bool:
    """Whether each text has a unit of measure or currency that the other lacks.

    "5 cm" and "5 km" differ, also "5 cm" and "5 cm^2"; "5 cm" and "5" do not, nor do "5 km" and "5 km/h".
    """
    first, second = _units(one), _units(other)
    return bool(first - second) and bool(second - first)


def _units(text: str) -> set[str]:
    r"""The units after the last digit, each by its first name in :data:`_UNITS`; m, s, g, h and l only in ``\text``."""
    dollar = {"dollar"} if "\\$" in text or text.count("$") == 1 else set()
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-z])", "°", text.lower())
    letter = r"(?:\\(?:text|mathrm)\s*\{\s*|(?<=[a-z]{2})/\s*)([msghl])(?![a-z])"
    text = re.sub(letter, lambda unit: f" {_LETTER_UNITS[unit[1]]} ", text)
    text = re.sub(r"(?<=[a-z} ])\s*\^\s*\{?\s*([23])\s*\}?", lambda power: {"2": "²", "3": "³"}[power[1]], text)
    text = re.sub(r"\b(?:(square|sq\.?)|cubic)\s+([a-z]+)", lambda found: found[2] + ("²" if found[1] else "³"), text)
    tail = re.split("[0-9]", text)[-1] + "".join(re.findall("[€£¥]", text))
    found = re.findall(r"(°[cf]?|[€£¥¢]|(?<!\\)[a-z]{2,})(?:[\s}.]*([²³]))?", re.sub(r"°\s+(?=[cf]\b)", "°", tail))
    names = ((_UNIT_NAMES.get(word) or _UNIT_NAMES.get(word.removesuffix("s")), power) for word, power in found)
    return dollar | {name + power for name, power in names if name}


def last_number(text: str) -> str | None:
    """Last number in free text with the words around it, back to the previous number; None without a number.

    Pass the result to :func:`parse_number`, which rejects it if those words change its meaning: "17+1" gives "+1" and
    "18 or 20" gives "or 20", both rejected; "9 eggs for $2 make $18." gives "make $18.".
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
        # "9 + 9 = 18" and "2c = 36, c = 18" are results; "17 = 18" is a false statement with two numbers.
        if equals:
            is_result = re.search(r"[-+*/×÷()]|[0-9] ?x ?\$?[.0-9]|[^\W\d_]\s*$", previous[1:] + left)
            return re.sub(r"^(\W*[0-9.,]+) ?\\?%", r"\1", right.strip()) if is_result else plain.strip()
        # Attached to the previous number, or after an operator: part of an expression.
        if not re.match(r"[,;:.]?\s+(?![-+*/×÷^]\s*[0-9])|-?[^\W\d_]", segment):
            return plain.strip()
        return segment.strip()
    return None


def _plain(text: str) -> str:
    """Remove emphasis, LaTeX boxes and dollar signs; normalize minus signs and spaces."""
    text = re.sub(rf"[{_MINUS}]", "-", text).replace("\u00a0", " ").replace("\u202f", " ").replace("’", "'")
    text = _INVISIBLE.sub("", text).replace("{,}", ",").replace("\\!", "")
    for _ in range(2):  # a box around text
        text = re.sub(r"\\(?:boxed|text|mathrm|textbf)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\\(|\\\)|\\\[|\\\]|\\[,; ]", " ", text).replace("\\$", "$")
    text = re.sub(r"\bnegative (?=[$€£¥]?[0-9.])", "-", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<![\w)*])(\*\*|\*|__|`)(?=\S)([^*`]*?)(?<=\S)\1(?![\w(*])", r"\2", text)
    return re.sub(r"\$([^$]+)\$", r"\1", text).strip()


def _value_of(found: re.Match[str]) -> Fraction | None:
    """Value of a match; None for two signs ("-1/-2") or a fraction that is a division (36/2, 1/0)."""
    if found["sign"] and (found["inner_sign"] or found["bottom_sign"]):
        return None
    if found["bottom"]:
        top, bottom = int(found["top"]), int(found["bottom"])
        if bottom < 2 or gcd(top, bottom) != 1 or (found["whole"] and top >= bottom):
            return None
        value = Fraction(int(found["whole"] or 0)) + Fraction(top, bottom)
    else:
        value = Fraction(Decimal((found["grouped"] or found["plain"]).replace(",", "")))
    return -value if "-" in (found["sign"], found["inner_sign"], found["bottom_sign"]) else value


def _is_prose(text: str) -> bool:
    """Whether the text is only words and punctuation, without operators that could change the number."""
    return bool(_CLEAN.fullmatch(_WORD.sub("", text)))
