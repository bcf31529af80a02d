r"""Grader for MATH-style answers: numbers exactly, expressions through math-verify, words as text.

A gold answer that is a number (also ``\frac{1}{2}``, ``3\frac12``, ``1{,}800``) is compared by :mod:`number_parser
<grpo_train.rewards.number_parser>`: exactly, in lowest terms, without arithmetic. Other answers are LaTeX and go to
math-verify, in a process that is killed if it takes too long. Its known false positives are kept from it:

- different variables ("5c" and "5d": it drops single letters as units), or a percent sign on one side only;
- factorials, sequences with dots, times, numbers in other bases, huge exponents: these must be equal as text;
- words that the gold answer lacks ("not", "approximately"): a hedge.

These rules are for rewards: a policy that is trained on a loose grader learns to exploit it. The flexible reading is
math-verify's own verdict on the last boxed or final answer, as in published figures, with its looser rules.

The reasons ``grader_timeout`` and ``grader_error`` mark answers that could not be judged; they are counted separately
from ``wrong``.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache, partial

from grpo_train.rewards.helpers import GRADER_FAILURES, HelperError, Helpers, HelperTimeout, math_verifier
from grpo_train.rewards.number_parser import parse_number, units_differ
from grpo_train.rewards.tags import after_thoughts, last_tagged, strict_answer, tagged_verdict
from grpo_train.rewards.types import Attempt, Verdict

MAX_CHARS = 300
"""A longer answer is prose or an attack."""
MAX_TEXT = 20_000
"""Characters of a completion that are searched for its final answer, from the end."""
SECONDS = 2.0
"""CPU time limit of math-verify per answer; most take a few milliseconds."""

_BEYOND = re.compile(
    r"""
    ! | \*\* | : | \\[lc]?dots | \\(?:bmod|pmod|mod|binom|factorial)\b | \b(?:factorial|mod)\b
    | [0-9]_ | [0-9]{50}                                      # 1011_2; more digits than any answer has
    | \^\s*[({]?\s*-?[0-9]{4}                                  # 2^{2005}
    | \^\s*[({]*\s*[0-9.]+\s*[)}]*\s*\^                        # 9^9^9, 10^(10)^10
    | \^\s*[({][^a-zA-Z\\]*\^                                  # 10^(10^(10))
    | (?:[({[]\s*){12}                                         # deeply nested parentheses
    """,
    re.VERBOSE,
)
_DELIMITED = re.compile(r"\$|\\\(|\\\[|\\boxed")
"""LaTeX that math-verify finds in a text by itself."""
_UNIT_WORDS = """
    cm mm km ft feet foot inch inches in meter meters metre metres mile miles yard yards second seconds sec minute
    minutes min hour hours day days degree degrees unit units square sq cubic dollar dollars cent cents gram grams kg
    per
"""
_SIGNS = {
    "π": r"\pi ", "∞": r"\infty ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "⁄": "/", "±": r"\pm ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "⟨": "<", "⟩": ">",
    "〈": "<", "〉": ">",
}  # fmt: skip
_PERCENT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{\s*(?:percent|per cent)\s*\}|\s*\bper ?cent\b", re.IGNORECASE)
_LEAD_IN_WORDS = "the final answer is are thus so therefore hence"
_FUNCTION_WORDS = "sin cos tan cot sec csc log ln exp sqrt max min gcd lcm arcsin arccos arctan"
_HEDGE_WORDS = "not no or nor about over under"
_UNITS, _LEAD_IN, _FUNCTIONS, _HEDGES, _SHORT_WORDS = (
    frozenset(words.split())
    for words in (
        _UNIT_WORDS,
        _LEAD_IN_WORDS,
        _FUNCTION_WORDS,
        _HEDGE_WORDS,
        "yes no odd even one two six ten all am pm",
    )
)
_WORD_START = r"(?<![\\a-zA-Z])(?<!\\begin\{)(?<!\\end\{)"
"""Not inside a word, a command or an environment name."""
_ANY_UNIT, _POWER = "|".join(sorted(_UNITS, key=len, reverse=True)), r"\s*\^\s*(?:[23]|\{[23]\})"
_UNIT_BOX = re.compile(
    rf"\\(?:text|textrm|mathrm|mbox)\s*\{{\s*(?:square |sq\.? |cubic )?(?:{_ANY_UNIT}|[msghl])s?\.?\s*\}}(?:{_POWER})?"
)
_LETTER_UNIT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{\s*([msghl])\.?\s*\}(?:\s*\^\s*\{?([23])\}?)?[$.\s]*$")
"""A unit of one letter at the end of a gold answer: the answer may have it without a box."""
_UNIT_POWER = re.compile(rf"{_WORD_START}({_ANY_UNIT}){_POWER}")


def judge_math(attempt: Attempt) -> Verdict:
    r"""Compare the answer with the gold answer; the flexible reading is :func:`own_verdict`.

    A truncated completion is wrong, as for numbers. Never raises. Waits for another process: call it from threads.
    """
    gold = attempt.problem.answer
    answer, problem = strict_answer(attempt.text)
    reason = problem if answer is None else compare_answers(answer, gold)
    flexible = own_verdict(attempt.text, gold)
    metrics = {"grader/failed": float(bool({reason, flexible} & set(GRADER_FAILURES)))}
    return tagged_verdict(attempt, answer, reason, flexible=flexible == "ok", metrics=metrics)


def own_verdict(completion: str, gold: str) -> str:
    r"""math-verify's verdict on the last answer tag of a completion, else on the last ``\boxed`` or final answer.

    It reads boxes next to each other (``\boxed{1}`` and ``\boxed{2}``) as one answer, a set. ``ok``, ``wrong`` or a
    grader failure. Never raises; takes at most two seconds of CPU time.
    """
    answer = last_tagged(completion)
    if answer == gold:
        return "ok"
    if answer is None:
        text = after_thoughts(completion)[-MAX_TEXT:]
    elif _DELIMITED.search(answer):
        text = answer[-MAX_TEXT:]
    else:
        text = rf"\boxed{{{answer[-MAX_TEXT:]}}}"
    return _asked({"gold": gold, "text": text})


def compare_answers(answer: str, gold: str) -> str:
    """``ok`` if ``answer`` equals ``gold``, else the reason. Never raises; takes at most two seconds of CPU time.

    Reasons: ``wrong``, ``ambiguous`` (a hedge), ``not_numeric`` (only the gold answer is a number), ``refused`` (too
    long, or arithmetic too large), ``unreadable`` (not LaTeX), ``grader_timeout``, ``grader_error``.
    """
    if len(answer) > MAX_CHARS or len(gold) > MAX_CHARS:
        return "ok" if answer == gold else "refused"
    given, expected = plain_latex(answer), plain_latex(gold)
    if not given or not expected:
        return "unreadable"
    if units_differ(answer, gold):
        return "wrong"
    if unit := _LETTER_UNIT.search(gold):
        power = rf"\s*\^\s*\{{?{unit[2]}\}}?" if unit[2] else ""
        given = re.sub(rf"(?<=[0-9)}}])\s*{unit[1]}{power}$", "", given)
    if _canonical_text(given) == _canonical_text(expected):
        return "ok"
    if given.count("%") != expected.count("%"):
        return "wrong"
    given, expected = given.replace("%", "").strip(), expected.replace("%", "").strip()
    number = _number(expected)
    if not isinstance(number, str):
        found = _number(_without_left_side(given))
        return found if isinstance(found, str) else "ok" if found == number else "wrong"
    if _BEYOND.search(given) or _BEYOND.search(expected):
        return "refused"
    given, expected = _as_list(given), _as_list(expected)
    given_right, expected_right = _without_left_side(given), _without_left_side(expected)
    if given_right == given or expected_right == expected:  # only one side has a left-hand side
        given, expected = given_right, expected_right
    if given.count("=") != expected.count("="):
        return "wrong"
    words, known = _words(given), _words(expected)
    if words - known - _UNITS - _LEAD_IN - _FUNCTIONS:
        return "ambiguous" if known <= words else "wrong"
    given, expected = _without_words(given), _without_words(expected)
    if not given or not expected:
        return "wrong"
    if _variables(given) != _variables(expected):
        return "wrong"
    return _verify(given, expected)


def same_math(one: str, other: str) -> bool:
    """Whether :func:`compare_answers` finds two answers equal."""
    return compare_answers(one, other) == "ok"


def plain_latex(text: str) -> str:
    r"""Remove dollar signs, one outer ``\boxed``, spacing, sizes, text boxes and degree signs."""
    text = _ascii(re.sub("[−–‐‑﹣]", "-", text.strip()).replace("\u00a0", " "))
    text = text.removeprefix("**").removesuffix("**").strip().rstrip(".").strip()
    text = re.sub(
        r"^\\\[(.*)\\\]$|^\\\((.*)\\\)$|^\$\$(.*)\$\$$|^\$(.*)\$$", _first_group, text, flags=re.DOTALL
    ).strip()
    boxed = last_boxed(text)
    if boxed is not None and text == rf"\boxed{{{boxed}}}":
        text = boxed
    text = text.replace(r"\$", "").replace("$", "").replace("{,}", ",").replace(r"\%", "%")
    text = re.sub(r"\\(?:left|right|bigg?|Bigg?|displaystyle|!)(?![a-zA-Z])", "", text)
    text = re.sub(r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))", "", text)
    text = re.sub(r"(?<!\\)\\(?:,|;|:|\s|quad|qquad)", " ", text).replace("~", " ")
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(r"^(?:\\langle(?![a-zA-Z])|<)([^<>]*,[^<>]*)(?:\\rangle|>)$", r"(\1)", text)
    text = _with_braces(text)
    text = _PERCENT.sub("%", text)
    text = _UNIT_POWER.sub(r"\1", _UNIT_BOX.sub("", text))
    text = re.sub(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°", "", text)
    text = re.sub(r"_\{([0-9a-zA-Z]+)\}", r"_\1", text)
    text = re.sub(r"(?<=\{)\s+|\s+(?=\})", "", text)
    return re.sub(r"\s+", " ", text).strip()


def _ascii(text: str) -> str:
    r"""Unicode as LaTeX: digits of any script, ½, x², x₁, √2, π, fullwidth signs."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+", lambda found: f"^{{{_compatible(found[0])}}}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda found: f"_{{{_compatible(found[0])}}}", text)
    text = re.sub("[¼-¾⅐-⅞↉]", lambda found: r"\frac{{{}}}{{{}}}".format(*_compatible(found[0]).split("/")), text)
    for sign, command in (("√", r"\sqrt"), ("∛", r"\sqrt[3]"), ("∜", r"\sqrt[4]")):
        text = re.sub(sign + r"\s*(?:\(([^()]*)\)|([0-9]+|(?=\{)|\w))", partial(_root, command), text)
    text = "".join(_SIGNS.get(one, _compatible(one) if "\uff01" <= one <= "\uff5e" else one) for one in text)
    return re.sub(r"[^\W0-9a-zA-Z_]", lambda found: str(unicodedata.decimal(found[0], found[0])), text)


def _compatible(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2212", "-").replace("\u2044", "/")


def _root(command: str, found: re.Match[str]) -> str:
    return command + (f"{{{found[1] or found[2]}}}" if found[1] or found[2] else "")


def _with_braces(latex: str) -> str:
    r"""Add braces to the arguments of ``\frac`` and ``\sqrt``; math-verify cannot read ``\frac\pi2``."""
    for found in reversed(list(re.finditer(r"\\(frac|sqrt)(?![a-zA-Z])(?:\s*\[[^\[\]]*\])?", latex))):
        head, rest = latex[: found.end()], latex[found.end() :].lstrip()
        for _ in range(2 if found[1] == "frac" else 1):
            inner, written = _argument(rest)
            if not written:
                break
            head, rest = f"{head}{{{inner}}}", rest[written:].lstrip()
        latex = head + rest
    return re.sub(r"([\^_])\s*(\\frac\{[^{}]*\}\{[^{}]*\})", r"\1{\2}", latex)


def _argument(latex: str) -> tuple[str, int]:
    """The next LaTeX argument without braces, and its length with braces (0 without an argument)."""
    if not latex.startswith("{"):
        token = re.match(r"\\(?!frac|sqrt)[a-zA-Z]+|[0-9a-zA-Z]", latex)
        return (token[0], len(token[0])) if token else ("", 0)
    inner = _in_braces(latex)
    return ("", 0) if inner is None else (inner, len(inner) + 2)


def _in_braces(text: str) -> str | None:
    """Text between the opening brace at the start and its match; None if unmatched."""
    depth = 0
    for position, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:position]
    return None


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{…}``, braces matched; None without one."""
    start = text.rfind(r"\boxed{")
    inner = None if start < 0 else _in_braces(text[start + len(r"\boxed") :])
    return None if inner is None else inner.strip()


@lru_cache(maxsize=1)
def _helpers() -> Helpers:
    return Helpers(math_verifier.__file__, seconds=SECONDS)


def _verify(given: str, expected: str) -> str:
    return _asked({"gold": expected, "answer": given})


def _asked(question: dict[str, str]) -> str:
    """The helper's verdict, or why there is none."""
    try:
        verdict = _helpers().ask(question)
    except HelperTimeout:
        return "grader_timeout"
    except HelperError:  # a helper that was killed for its memory
        return "grader_error"
    if isinstance(verdict, str):
        return "grader_error" if verdict == "gold_unreadable" else verdict
    return "ok" if verdict else "wrong"


def _first_group(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _canonical_text(latex: str) -> str:
    """Canonical text: spaces only between letters and digits, (A) as A, the words of a text of words in lower case."""
    text = re.sub(r"(?<![^\W_])\s+|\s+(?![^\W_])", "", latex)
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", text)
    if not re.fullmatch(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*", text):
        return text
    return " ".join(word.lower() if _has_any_case(word) else word for word in text.split(" "))


def _has_any_case(word: str) -> bool:
    """Whether a word is the same in upper and lower case: "Monday", "Red" and "YES", but not "AB" (a segment)."""
    return len(word) > 3 or word.lower() in _SHORT_WORDS or bool(re.fullmatch(r"[^\W\d_][a-z]{2}", word))


def _with_slashes(latex: str) -> str:
    r"""Rewrite fractions for :func:`parse_number`: ``3\frac{1}{2}`` as "3 1/2", ``-\frac{1}{2}`` as "-1/2"."""
    one_sign = r"\\frac\s*\{\s*(?:-\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)|([0-9]+)\s*\}\s*\{\s*-\s*([0-9]+))\s*\}"
    text = re.sub(r"\\frac\s*\{\s*-\s*([0-9]+)\s*\}\s*\{\s*-\s*([0-9]+)\s*\}", r"\\frac{\1}{\2}", latex)
    text = re.sub(one_sign, lambda found: rf"-\frac{{{found[1] or found[3]}}}{{{found[2] or found[4]}}}", text)
    return re.sub(r"([0-9]?)\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}", _fraction, text)


def _number(latex: str) -> Fraction | str:
    """The number, or the reason for rejecting it; "2ac" is not 2 with a unit."""
    number = parse_number(_with_slashes(latex))
    return "not_numeric" if _variables(_without_words(latex)) else number


def _fraction(match: re.Match[str]) -> str:
    whole, top, bottom = match.groups()
    return f"{whole} {top}/{bottom}" if whole else f"{top}/{bottom}"


def _without_left_side(latex: str) -> str:
    r"""Right-hand sides of ``x = 5``, ``f(x) = 5``, ``x \in [0,1]`` and ``x = 1, x = 2``; "17 = 18" is unchanged."""
    name = re.match(r"\s*((?:[a-zA-Z]|\\[a-z]+)(?:_?[a-zA-Z0-9])?(?:\([a-zA-Z]\))?)\s*(?:=|\\in(?![a-z]))", latex)
    if not name:
        return latex
    return re.sub(rf"(^|,)\s*{re.escape(name[1])}\s*(?:=|\\in(?![a-z]))\s*", r"\1", latex)


def _as_list(latex: str) -> str:
    return re.sub(r",?\s+(?:and|or)\s+", ", ", latex)


def _without_words(latex: str) -> str:
    """Remove all words (also units with an exponent) except function names."""
    kept = re.sub(
        _WORD_START + r"([a-zA-Z]{2,})(\s*\^\s*(?:[23]|\{[23]\}))?",
        lambda match: " " if _is_word(match[1]) and match[1] not in _FUNCTIONS else match[0],
        latex,
    )
    return kept.strip(" ,;")


def _words(latex: str) -> set[str]:
    return {word.lower() for word in re.findall(_WORD_START + "[a-zA-Z]{2,}", latex) if _is_word(word)}


def _is_word(letters: str) -> bool:
    """Whether a run of letters is a word (known, or longer than 3) and not a product like xy."""
    return len(letters) > 3 or letters.lower() in _UNITS | _LEAD_IN | _FUNCTIONS | _HEDGES


def _variables(latex: str) -> set[str]:
    latex = re.sub(r"\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+", " ", latex)
    return {letter for run in re.findall("[a-zA-Z]+", latex) if run not in _FUNCTIONS for letter in run}
