"""Seeded defects: which of them do the tests notice?

    python scripts/mutants.py map                    which test executes which line, and how long each takes
    python scripts/mutants.py run --seed 1           draw 120 defects over the product, run the tests of each
    python scripts/mutants.py run --seed 1 --old DIR run the survivors, twice, with the tests of an older checkout

All runs in a clone, ``.mutants/tree`` (or ``--old``), which gets an environment of its own. Results are appended to
``.mutants/seed-N.jsonl`` (``-old``), so a run that was ended continues where it was. A defect is drawn by the size of
its file, then by its kind (cosmic-ray's operators), then by its place; the tests that execute its line run shortest
first, until one fails or three minutes of processor time are used up. ``make mutants`` maps, and runs by the clone's
Python, which has cosmic-ray and coverage.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import os
import random
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guards
import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
STATE = REPOSITORY / ".mutants"
PRODUCT = ("grpo_train", "remote", "grpo_tui")
CPU_S = 180.0
WALL_S = 900.0
MOST_TESTS = 300
OPERATORS = [
    "AddNot", "ExceptionReplacer", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub",
    *(f"ReplaceComparisonOperator_{pair}" for pair in (
        "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in (
        "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Mod_Add", "FloorDiv_Mul")),
]  # fmt: skip
COVERAGE = """\
[run]
branch = true
parallel = true
concurrency = thread, multiprocessing
data_file = {data}
source_pkgs = grpo_train, remote, grpo_tui
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
plugins = guards_recorder
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("command", choices=["map", "run"])
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=120)
    options.add_argument("--old", type=Path, help="a clone of an older commit, to run the survivors with its tests")
    options.add_argument("tests", nargs="*", default=["tests"], help="for 'map': the tests to run")
    arguments = options.parse_args()
    tree = (arguments.old or STATE / "tree").resolve()
    STATE.mkdir(exist_ok=True)
    if arguments.command == "map":
        prepare(tree, REPOSITORY if arguments.old is None else None)
        make_map(tree, arguments.tests)
        return
    found = STATE / f"seed-{arguments.seed}.jsonl"
    if arguments.old is None:
        todo = draw(tree, random.Random(arguments.seed), arguments.count)
    else:
        todo = [row for row in read(found) if row["end"] != "killed"]
        found = found.with_name(f"{found.stem}-old.jsonl")
    done = {row["diff"] for row in read(found)}
    for mutant in todo:
        if mutant["diff"] not in done:
            row = judge(tree, mutant, 1 if arguments.old is None else 2)
            with found.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{row['end']:10} {row['file']}:{row['line']} {row['operator']}  {row['by']}", flush=True)
    report(read(found))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def report(rows: list[dict[str, Any]]) -> None:
    ends = [row["end"] for row in rows]
    print(", ".join(f"{ends.count(end)} {end}" for end in sorted(set(ends))))
    for row in rows:
        if row["end"] != "killed":
            print(f"\n{row['end']} after {row['tests']} tests\n{row['diff']}")


def prepare(tree: Path, source: Path | None) -> None:
    """A clone of the last commit with an environment of its own."""
    if source is not None:
        if not tree.exists():
            subprocess.run(["git", "clone", "-q", str(source), str(tree)], check=True)
        subprocess.run(["git", "-C", str(tree), "fetch", "-q", str(source), "HEAD"], check=True)
        subprocess.run(["git", "-C", str(tree), "checkout", "-q", "-f", "--detach", "FETCH_HEAD"], check=True)
    subprocess.run(["make", "-s", "setup"], cwd=tree, check=True)
    uv = tree / ".uv" / "bin" / "uv"
    packages = ["cosmic-ray>=8.4", "pytest-cov>=7", "psutil"]
    subprocess.run(
        [str(uv) if uv.exists() else "uv", "pip", "install", "-q", "--python", ".venv/bin/python", *packages],
        cwd=tree, check=True,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ the map


def map_of(tree: Path) -> tuple[Path, Path]:
    """The coverage database of a tree's suite, and its tests with their durations."""
    return tree / ".mutants-coverage", tree / ".mutants-tests.xml"


def make_map(tree: Path, tests: list[str]) -> None:
    """Run the suite with coverage: each line and branch with the tests that execute it.

    Processes that a test starts are measured where they inherit its environment. Where they swallow exceptions is
    recorded for scripts/guards.py.
    """
    data, durations_file = map_of(tree)
    settings = tree / ".mutants-settings"
    settings.write_text(COVERAGE.format(data=data))
    swallowed = data.with_name(guards.SWALLOWED)
    for old in (*tree.glob(f"{data.name}*"), *tree.glob(swallowed.name)):
        old.unlink()
    (packages,) = tree.glob(".venv/lib/python*/site-packages")
    (packages / "guards_recorder.py").write_text(guards.RECORDER.format(file=str(swallowed)))
    subprocess.run(
        [".venv/bin/python", "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal",
         "--timeout=1800", f"--junitxml={durations_file}",
         f"--cov-config={settings}", "--cov-context=test", "--cov-report=",
         *(f"--cov={name}" for name in PRODUCT), *tests],
        cwd=tree, env=os.environ | {"OMP_NUM_THREADS": "1", "COVERAGE_PROCESS_START": str(settings)},
    )  # fmt: skip
    combine = [".venv/bin/python", "-m", "coverage", "combine", "-q", "--append", f"--rcfile={settings}"]
    subprocess.run(combine, cwd=tree)  # what processes wrote that outlived their tests
    print(f"{len(durations(tree))} tests; lines and branches in {data}")


def durations(tree: Path) -> dict[str, float]:
    """Seconds by test."""
    found = {}
    for case in ElementTree.parse(map_of(tree)[1]).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        found[f"{file}::{case.get('name')}"] = float(case.get("time", 0))
    return found


def tests_of(tree: Path, file: str, line: int) -> list[str]:
    """The tests that execute a line, shortest first; those of the whole file for a line that imports execute."""
    from coverage import CoverageData

    data = CoverageData(str(map_of(tree)[0]))
    data.read()
    executed, seconds = data.contexts_by_lineno(str(tree / file)), durations(tree)
    lines = executed if is_imported((tree / file).read_text(), line) else [line]
    contexts = {context for line in lines for context in executed.get(line, [])}
    found = {part.split(" (")[0].split("|")[0] for context in contexts for part in context.split("\n")}
    return sorted(found & seconds.keys(), key=lambda test: seconds[test])


def is_imported(source: str, line: int) -> bool:
    """Whether a line is outside all functions."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return not any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)


# -------------------------------------------------------------------------------------------------------- the defects


def draw(tree: Path, random: random.Random, count: int) -> list[dict[str, Any]]:
    """Draw defects: a file by its lines, a kind of defect that it has, a place."""
    files = sorted(path for package in PRODUCT for path in (tree / package).rglob("*.py"))
    lengths = [len(path.read_text().splitlines()) for path in files]
    drawn: dict[str, dict[str, Any]] = {}
    while len(drawn) < count:
        (path,) = random.choices(files, lengths)
        source, kinds = path.read_text(), list(OPERATORS)
        random.shuffle(kinds)
        for kind in kinds:
            if places := list(changes(source, kind)):
                changed = random.choice(places)
                row = {"file": str(path.relative_to(tree)), "operator": kind, **facts(source, changed)}
                drawn.setdefault(row["diff"], row)
                break
    return list(drawn.values())


def changes(source: str, kind: str) -> Iterator[str]:
    """All ways to change a source by one kind of defect."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    for place in range(10_000):
        changed = mutate_code(source, get_operator(f"core/{kind}")(), place)
        if changed is None:
            return
        yield changed


def facts(source: str, changed: str) -> dict[str, Any]:
    """Where and how two sources differ."""
    before, after = source.splitlines(), changed.splitlines()
    first = next(i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new)
    diff = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
    return {"line": first + 1, "before": before[first], "after": after[first], "diff": "\n".join(diff)}


def judge(tree: Path, mutant: dict[str, Any], times: int) -> dict[str, Any]:
    """Run the tests of a defect; ``killed`` if one fails (each of ``times`` times)."""
    path = tree / mutant["file"]
    source = path.read_text() if path.exists() else ""
    lines = source.splitlines()
    places = [i for i, line in enumerate(lines) if line == mutant["before"]]
    if not places:
        return {**mutant, "end": "gone", "by": "", "tests": 0}
    at = min(places, key=lambda place: abs(place + 1 - mutant["line"]))
    tests = tests_of(tree, mutant["file"], at + 1)[:MOST_TESTS]
    if not tests:
        return {**mutant, "end": "unexecuted", "by": "", "tests": 0}
    lines[at] = mutant["after"]
    path.write_text("\n".join(lines) + "\n")
    try:
        runs = [run_tests(tree, tests) for _ in range(times)]
    finally:
        path.write_text(source)
    end = "killed" if all(end == "killed" for end, _ in runs) else min((end for end, _ in runs), key="killed".__eq__)
    return {**mutant, "end": end, "by": runs[0][1], "tests": len(tests)}


def run_tests(tree: Path, tests: list[str]) -> tuple[str, str]:
    """How the tests end: ``killed`` and by which, ``survived``, or ``undecided`` within the processor time."""
    (names := tree / ".mutants-names").write_text("\n".join(tests) + "\n")
    output = tree / ".mutants-output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [".venv/bin/python", "-m", "pytest", "-x", "-q", "--timeout=300", f"@{names.name}"],
            cwd=tree, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        used, wall = 0.0, 0
        while process.poll() is None and used < CPU_S and wall < WALL_S:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            used, wall = max(used, cpu_seconds(process.pid)), wall + 1
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "undecided", f"{used:.0f} CPU-seconds"
    failed = [line for line in output.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ("survived", "") if process.returncode == 0 else ("killed", (failed or ["exit code"])[0][:150])


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all below it."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(each.cpu_times()[:4])
    return total


if __name__ == "__main__":
    sys.exit(main())
