"""Syntax trees of programs."""

from __future__ import annotations

import ast
import threading
import warnings

_PARSING = threading.Lock()
"""Python 3.11 may fail with a SystemError when two threads build syntax trees (cpython issue 106905)."""

warnings.filterwarnings("ignore", module="<program>")  # a model's invalid escapes are not for the console log


def parse_program(text: str) -> ast.Module:
    """The syntax tree of a program. Raises SyntaxError for whatever Python cannot parse."""
    try:
        with _PARSING:
            return ast.parse(text, "<program>")
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from error
