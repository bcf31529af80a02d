"""GSM8K and MBPP for the tests: the official files if they are beside the repository, else small fixtures.

``math.jsonl`` is always a fixture: problems of our own in MATH's format, with LaTeX, Asymptote and boxed answers.

``GRPO_TEST_DATA=fixture`` hides the official files, as in a user's clone.
"""

from __future__ import annotations

import os
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "data"
_OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "data"


def data_file(name: str) -> Path:
    """``gsm8k_train.jsonl``, ``gsm8k_test.jsonl``, ``mbpp.jsonl`` or ``math.jsonl``: the official file if available."""
    hidden = os.environ.get("GRPO_TEST_DATA") == "fixture"
    official = _OFFICIAL / name
    return official if official.is_file() and not hidden else FIXTURES / name


def is_official(name: str) -> bool:
    """Whether :func:`data_file` returns the official file."""
    return data_file(name).parent == _OFFICIAL
