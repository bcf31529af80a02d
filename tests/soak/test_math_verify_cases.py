"""math-verify's published test cases beside our two readings, as the table in docs/evaluation.md.

The cases are in math-verify's source package, which is downloaded from PyPI, at the installed version.
"""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator

import pytest

from grpo_train.rewards.math_answer import compare_answers, last_boxed, own_verdict

Case = tuple[str, str, str, bool]
"""Group, gold answer, text, and whether math-verify's tests expect them to be equal."""
OTHER_SETTINGS = {
    "test_complex_math_expressions": 2,
    "test_latex_notation": 2,
    "test_number_extraction": 1,
    "test_set_rel_assymetry": 1,
    "test_strict_variable_comparison": 1,
    "test_string_extraction": 1,
}
"""Cases per group that math-verify tests under other settings than those of published figures (fewer digits, plain
numbers or LaTeX alone, relations as sets, variables that may differ), and one that calls 1 - 1/e and 1 + 1/e equal."""
LINE_BREAKS = 2
"""Cases that our rules accept and math-verify's tests do not: a line break inside inline LaTeX."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    folder = tmp_path_factory.mktemp("math_verify")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=300)
    version = importlib.metadata.version("math-verify")
    words = ["download", "--no-deps", "--no-binary", "math-verify", "--dest", str(folder), f"math-verify=={version}"]
    subprocess.run([folder / "venv" / "bin" / "pip", *words], check=True, timeout=600)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        files = [member for member in opened if "/tests/test_" in member.name]
        texts = [opened.extractfile(member).read().decode() for member in files]  # type: ignore[union-attr]
    return [case for text in texts for case in parametrized(text)]


def parametrized(source: str) -> Iterator[Case]:
    """The literal cases of the ``pytest.mark.parametrize`` decorators of a test file, without running it."""
    for function in ast.walk(ast.parse(source)):
        for decorator in getattr(function, "decorator_list", []):
            if getattr(getattr(decorator, "func", None), "attr", "") != "parametrize":
                continue
            try:
                names, values = map(ast.literal_eval, decorator.args)
            except ValueError:  # not literals
                continue
            columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            for value in values:
                row = dict(zip(columns, value, strict=True))
                expected = row.get("expected", row.get("result"))
                yield function.name, row["gold"], row["pred"], bool(expected)  # type: ignore[attr-defined]


def test_published_cases_beside_ours(cases: list[Case]) -> None:
    """The flexible reading is math-verify's own; our rules for rewards accept nothing that it rejects."""
    total, flexible, strict, reasons = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    accepted = 0
    for group, gold, text, expected in cases:
        reason = compare_answers(bare(text), bare(gold))
        total[group] += 1
        flexible[group] += (own_verdict(text, gold) == "ok") == expected
        strict[group] += (reason == "ok") == expected
        if expected and reason != "ok":
            reasons[reason] += 1
        accepted += reason == "ok" and not expected
    print("\n| published cases | number | flexible agrees | rewards agree |\n|---|---|---|---|")
    for group in total:
        print(f"| {group} | {total[group]} | {flexible[group]} | {strict[group]} |")
    print(f"| all | {total.total()} | {flexible.total()} | {strict.total()} |")
    print(f"equal for math-verify, rejected for rewards: {dict(reasons.most_common())}")
    assert total.total() > 250
    different = {group: total[group] - flexible[group] for group in total}
    assert {group: count for group, count in different.items() if count} == OTHER_SETTINGS
    assert accepted == LINE_BREAKS
    assert "ok" not in reasons


def bare(text: str) -> str:
    """What our rules compare: the last box of a text, else the text."""
    boxed = last_boxed(text)
    return text if boxed is None else boxed
