"""The shape of the packages: no circle of imports, few modules at the top, one meaning per class name."""

from __future__ import annotations

import pytest

from scripts.house import circle_in, doubled_classes, loose_in

MOST_AT_THE_TOP = {"grpo_tui": 10, "remote": 9}


@pytest.mark.parametrize("package", ["grpo_train", "remote", "grpo_tui"])
def test_imports_have_no_circle(package: str) -> None:
    """Imports for a type and in functions included."""
    assert circle_in(package) == []


@pytest.mark.parametrize("package", ["remote", "grpo_tui"])
def test_a_class_name_is_defined_once(package: str) -> None:
    assert doubled_classes(package) == []


@pytest.mark.parametrize("package", ["remote", "grpo_tui"])
def test_few_modules_are_at_the_top(package: str) -> None:
    assert len(loose_in(package)) <= MOST_AT_THE_TOP[package]
