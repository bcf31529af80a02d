"""Dataset tests on a solution: values come out of the sandbox, verdicts are made here."""

from __future__ import annotations

from typing import Any

from grpo_train.sandbox.asserts import PLACEHOLDER, AssertCheck, holds, plan_tests
from grpo_train.sandbox.child import ChildOutcome
from grpo_train.sandbox.layers import MAX_MEMORY, Isolation
from grpo_train.sandbox.probe import isolation
from grpo_train.sandbox.programs import reported_denials, run
from grpo_train.sandbox.results import REASONS, TestsResult
from grpo_train.sandbox.values import BadValue, Lazy, ValueDecoder, for_judge

JUDGE_CPU_SECONDS = 3.0
CONTENTION = 1.6
"""Factor on the CPU limit: the same work takes more CPU time when other programs share caches and cores (MBPP's slowest
reference solution takes 1.9 to 2.8 s on idle cores), and verdicts must not depend on the load."""


class _Failed(Exception):
    """A check that fails for another reason than a wrong answer: one of REASONS, a colon and details."""


def run_tests(
    solution: str, tests: list[str], setup: str = "", cpu_seconds: float = 3.0, *, memory: int = MAX_MEMORY
) -> TestsResult:
    """Run ``solution``, ``setup`` and the calls of ``tests`` in one fresh sandboxed interpreter; judge the values here.

    Args:
        tests: asserts of the dataset; the expected values never enter the solution's process.
        cpu_seconds: CPU time on an idle core for everything; the limit is :data:`CONTENTION` times that, in whole
            seconds.
        memory: address space in bytes.

    Output of the solution is discarded. A test that cannot be split fails with ``unsupported_test``
    (:func:`split_tests` raises for it). Thread-safe. Raises :class:`SandboxTooWeak` and :class:`SandboxError`;
    anything the solution does results in a verdict.
    """
    layers = isolation()
    plan = plan_tests(tuple(tests), setup)
    job: dict[str, object] = {"mode": "tests", "source": solution, "setup": setup, "tests": plan.steps}
    outcome = run(layers, job, cpu_seconds, contention=CONTENTION, memory=memory)
    values = _Values(outcome)
    verdicts: list[list[str]] = []
    to_judge: list[tuple[int, int, AssertCheck]] = []
    for test, (checks, problem) in enumerate(zip(plan.checks, plan.problems, strict=True)):
        verdicts.append([f"unsupported_test: {problem}"] if problem else [])
        for check in checks:
            try:
                if check.relation == "judge":
                    to_judge.append((test, len(verdicts[test]), check))
                    verdicts[test].append("no_result: not judged")
                else:
                    verdicts[test].append("ok" if holds(check, values.plain(check.wanted[0])) else "wrong_answer")
            except _Failed as failure:
                verdicts[test].append(str(failure))
    for (test, slot, _), verdict in zip(to_judge, _judge(layers, [c for _, _, c in to_judge], values), strict=True):
        verdicts[test][slot] = verdict
    reasons = [next((verdict for verdict in of_test if verdict != "ok"), "ok") for of_test in verdicts]
    first = next((reason for reason in reasons if reason != "ok"), "ok" if reasons else "no_tests")
    return TestsResult(
        passed=[reason == "ok" for reason in reasons],
        reason=first.partition(":")[0],
        reasons=reasons,
        isolation=layers.level,
        denials=reported_denials(outcome),
        seconds=outcome.wall_seconds,
    )


class _Values:
    """Values that the program's process claims for its expressions."""

    def __init__(self, outcome: ChildOutcome) -> None:
        self.problem = _problem(outcome)
        self._decoder = ValueDecoder()
        self._claimed: dict[int, tuple[bytes, bytes]] = {}
        for letter, index, content in outcome.records:
            if letter in (b"V", b"X"):
                self._claimed.setdefault(index, (letter, content))

    def of(self, index: int) -> Any:
        """Value of an expression by index. Raises :class:`_Failed`."""
        letter, content = self._claimed.get(index, (b"", b""))
        if self.problem.startswith("forged_results") or not letter:
            raise _Failed(self.problem or "no_result: nothing reported")
        if letter == b"X":
            raise _Failed(_claimed_failure(content))
        try:
            return self._decoder.decode(content)
        except BadValue as error:
            raise _Failed(f"unsupported_value: {error}") from None

    def plain(self, index: int) -> Any:
        """The same, in a form that can be compared in this process."""
        value = self.of(index)
        if isinstance(value, Lazy) and value.kind == "view":
            try:
                return self._decoder.as_set(value)
            except BadValue as error:
                raise _Failed(f"unsupported_value: {error}") from None
        if isinstance(value, Lazy):
            raise _Failed(f"unsupported_value: a {value.kind}")
        return value


def _problem(outcome: ChildOutcome) -> str:
    """Why values may be missing: one of REASONS, a colon and details; "" if no problem is known."""
    if outcome.forged:
        return "forged_results: foreign data in the result channel"
    if outcome.over_limit:
        return "output_limit: too many results"
    if outcome.over_time:
        return f"timeout: after {outcome.cpu_seconds:.1f} s of CPU time and {outcome.wall_seconds:.1f} s of wall time"
    loaded = outcome.first(b"P")
    if loaded is not None and not loaded.startswith(b"ok\t"):
        return _claimed_failure(loaded)
    if outcome.first(b"D") is None:
        if outcome.exit_code > 128:
            return f"killed: by signal {outcome.exit_code - 128}"
        return f"exit: the process exited with code {outcome.exit_code} before its results"
    return ""


def _claimed_failure(content: bytes) -> str:
    """A failure reported by the child; unknown kinds count as ``exception``."""
    kind, _, text = content.decode("utf-8", "replace").partition("\t")
    return f"{kind if kind in REASONS and kind != 'ok' else 'exception'}: {text}"


def _judge(layers: Isolation, checks: list[AssertCheck], values: _Values) -> list[str]:
    """Verdicts of checks that need more than a comparison with a literal.

    Evaluated in a fresh sandboxed interpreter, which runs text of the dataset only, so that slow comparisons do not
    take this process's time.
    """
    expressions = []
    problems: dict[int, str] = {}
    for index, check in enumerate(checks):
        arguments = {}
        for wanted in check.wanted:
            try:
                arguments[PLACEHOLDER.format(wanted)] = for_judge(values.of(wanted))
            except _Failed as failure:
                problems.setdefault(index, str(failure))
            except BadValue as error:
                problems.setdefault(index, f"unsupported_value: {error}")
        expressions.append((check.code, check.imports, arguments))
    if len(problems) == len(checks):
        return [problems[index] for index in range(len(checks))]
    outcome = run(layers, {"mode": "judge", "expressions": expressions}, JUDGE_CPU_SECONDS)
    truths = _Values(outcome)
    verdicts = []
    for index in range(len(checks)):
        try:
            verdict = "ok" if truths.plain(index) is True else "wrong_answer"
        except _Failed as failure:
            verdict = f"test_failed: in the comparison: {failure}"
        verdicts.append(problems.get(index, verdict) if verdict != "ok" else verdict)
    return verdicts
