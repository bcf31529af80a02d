"""Data for the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
OFFICIAL = HERE.parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def gsm8k_dir() -> Path:
    """GSM8K's official files where they lie beside the repository, else eight rows of our own in the same format."""
    return OFFICIAL if (OFFICIAL / "gsm8k_test.jsonl").is_file() else HERE / "data"
