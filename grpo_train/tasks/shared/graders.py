"""Graders of a user's own problems, by the name in ``task.grader``.

- ``number``: exact, see :mod:`grpo_train.rewards.number`; a gold answer may be a JSON number or end in ``#### N``;
- ``text``: the same text, ignoring case, white space and the form of quotation marks;
- ``math``: LaTeX through math-verify, see :mod:`grpo_train.rewards.math_answer` (the extra ``math``);
- ``none``: rows need no gold answer and nothing is judged; ``task.rewards`` decides alone;
- ``module:function`` or ``file.py:function``: called with an :class:`~grpo_train.rewards.types.Attempt` whose
  ``problem.data`` is the row; returns a :class:`~grpo_train.rewards.types.Verdict`, or whether the answer is right.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from grpo_train.rewards.math_answer import judge_math, last_boxed, same_math
from grpo_train.rewards.number import judge_number
from grpo_train.rewards.number_parser import parse_number
from grpo_train.rewards.tags import strict_answer
from grpo_train.rewards.text import judge_text
from grpo_train.rewards.types import Attempt, TaskError, Verdict
from grpo_train.rewards.user_code import load_function
from grpo_train.run_dir.installation import install_command
from grpo_train.tasks.shared.base import same_value
from grpo_train.tasks.shared.overlap import normal_text


@dataclass(frozen=True)
class Grader:
    """How answers are judged."""

    gold: Callable[[Any], str]
    """The gold answer as text, from the value of a row's field. Raises ValueError with the problem."""
    judge: Callable[[Attempt], Verdict]
    same: Callable[[str, str], bool] = same_value
    """Whether two answers are the same to the grader."""
    slow: bool = False
    needs_gold: bool = True
    """Whether every row must have a gold answer."""


@lru_cache(maxsize=8)
def grader_of(name: str) -> Grader:
    """The grader that ``task.grader`` names. Raises TaskError."""
    if ":" in name:
        function = load_function(name, "task.grader")
        return Grader(_any_gold, lambda attempt: _judge_by_user(name, function, attempt))
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        raise TaskError(f"task.grader: math needs math-verify, which is not installed:  {install_command('math')}")
    if name not in GRADERS:
        raise TaskError(f"task.grader: '{name}' must be one of {', '.join(GRADERS)}, or your own file.py:function")
    return GRADERS[name]


def _scalar(value: Any) -> str:
    """A text or number as text. Raises ValueError."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise ValueError("is NaN" if value is not None else "is empty")
    if isinstance(value, Decimal):
        value = f"{value:f}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"is {type(value).__name__}, expected text or a number")
    if not str(value).strip():
        raise ValueError("is empty")
    return str(value).strip()


def _number_gold(value: Any) -> str:
    text = _scalar(value).rpartition("####")[2].strip()
    if isinstance(parse_number(text), str):
        raise ValueError(f"must be one number, or end in '#### N', found {text[-60:]!r}")
    return text


def _math_gold(value: Any) -> str:
    text = _scalar(value)
    return last_boxed(text) or text.rpartition("####")[2].strip()


def _any_gold(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _same_text(one: str, other: str) -> bool:
    return normal_text(one) == normal_text(other)


def _judge_text(attempt: Attempt) -> Verdict:
    return judge_text(attempt, lambda answer: _same_text(answer, attempt.problem.answer))


def _judge_nothing(attempt: Attempt) -> Verdict:
    answer, _ = strict_answer(attempt.text)
    return Verdict(False, answer is not None and not attempt.truncated, "not_judged", answer)


def _judge_by_user(name: str, function: Callable[[Attempt], Any], attempt: Attempt) -> Verdict:
    """The verdict of a user's function. An exception becomes the verdict ``grader_error``; an unusable return value
    raises TaskError."""
    answer, _ = strict_answer(attempt.text)
    try:
        verdict = function(attempt)
    except (Exception, SystemExit) as error:  # user code may raise anything
        metrics = {"grader/failed": 1.0}
        facts = {"grader_error": f"{type(error).__name__}: {error}"[:300]}
        return Verdict(False, answer is not None, "grader_error", answer, metrics=metrics, facts=facts)
    if isinstance(verdict, Verdict):
        return verdict
    try:
        known = verdict in (True, False)  # 1.0 and NumPy bools included
    except Exception:  # an array with several elements
        known = False
    if not known:
        raise TaskError(f"task.grader: '{name}' returned {verdict!r}; return a Verdict, or True or False")
    right = bool(verdict) and not attempt.truncated
    reason = "truncated" if attempt.truncated else "ok" if right else "wrong"
    return Verdict(right, answer is not None and not attempt.truncated, reason, answer, metrics={"grader/failed": 0.0})


GRADERS = {
    "number": Grader(_number_gold, judge_number),
    "text": Grader(_scalar, _judge_text, _same_text),
    "math": Grader(_math_gold, judge_math, same_math, slow=True),
    "none": Grader(_any_gold, _judge_nothing, needs_gold=False),
}
"""Graders by name."""
