"""The shape of the packages: no circle of imports, few modules at the top, one meaning per name."""

from __future__ import annotations

import pytest

from scripts.house import PACKAGES, circle_in, doubled_classes, doubled_functions, loose_in, shared_classes

MOST_AT_THE_TOP = {"grpo_tui": 10, "remote": 9}
TABLES = {"grpo_train/cli", "grpo_tui/shell", "grpo_tui/commands"}
"""Folders whose public functions are commands."""
ENTRIES = {
    "main": "of a program", "load": "of a task's module", "prepare": "of a helper", "run": "of shell commands",
    "command_parser": "their options",
}  # fmt: skip
"""Functions that are called by their name in each of several modules."""
SAME_THING = {
    "BackupRow", "BackupState", "Checkpoint", "Condition", "Curve", "Evaluation", "Event", "Gpu", "HeldOut", "SlurmJob",
    "SnapshotRow", "StageRow", "StoredRun", "StoredSnapshot", "Transfer",
}  # fmt: skip
"""Classes of several packages that are one thing: on the box, on its way, and in the app."""


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_have_no_circle(package: str) -> None:
    """Imports for a type and in functions included."""
    assert circle_in(package) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_name_is_defined_once(package: str) -> None:
    assert doubled_classes(package) == []


def test_a_class_name_of_several_packages_is_one_thing() -> None:
    assert set(shared_classes()) == SAME_THING


@pytest.mark.parametrize("package", PACKAGES)
def test_a_function_name_is_defined_once(package: str) -> None:
    """But for commands, and what modules of a kind are asked for by its name."""
    assert [name for name in doubled_functions(package, TABLES) if name not in ENTRIES] == []


@pytest.mark.parametrize("package", ["remote", "grpo_tui"])
def test_few_modules_are_at_the_top(package: str) -> None:
    assert len(loose_in(package)) <= MOST_AT_THE_TOP[package]
