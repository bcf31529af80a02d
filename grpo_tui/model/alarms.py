"""Rules for metrics, such as ``ess/token < 0.5``: a line in the chart, an entry of what needs you. No Textual."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass

_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_RULE = re.compile(r"\s*(\S+?)\s*(<=|>=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True)
class Rule:
    """An alarm while a metric is on one side of a limit."""

    metric: str
    operator: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read ``METRIC < NUMBER``, also with ``<= > >=``. Raises ValueError."""
        match = _RULE.fullmatch(text)
        try:
            limit = float(match[3]) if match else math.nan
        except ValueError:
            limit = math.nan
        if match is None or not math.isfinite(limit):
            raise ValueError(f"'{text}' is not a rule; write METRIC < NUMBER, with < <= > or >=, as in ess/token < 0.5")
        return cls(match[1], match[2], limit)

    def is_broken(self, value: float | None) -> bool:
        """Whether a value is an alarm; NaN is one for every rule."""
        return value is not None and (value != value or bool(_OPERATORS[self.operator](value, self.limit)))

    @property
    def words(self) -> str:
        """``alarm below 0.5``"""
        return f"alarm {'below' if self.operator[0] == '<' else 'above'} {self.limit:g}"

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.limit:g}"
