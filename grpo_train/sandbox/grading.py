"""Running a data set's tests on a solution: the values come out of the sandbox, the verdicts are made here."""

from __future__ import annotations

from typing import Any

from grpo_train.sandbox.asserts import PLACEHOLDER, Check, holds, plan_tests
from grpo_train.sandbox.child import Ended
from grpo_train.sandbox.layers import MAX_MEMORY, Isolation
from grpo_train.sandbox.probe import isolation
from grpo_train.sandbox.programs import denials, run
from grpo_train.sandbox.results import REASONS, TestsResult
from grpo_train.sandbox.values import BadValue, Decoder, Lazy, for_judge

JUDGE_CPU_SECONDS = 3.0


BUSY = 1.6
"""The same work takes so much more processor time where other programs share caches and cores (MBPP's slowest reference
solution takes 1.9 to 2.8 s on idle cores): a verdict must not depend on the neighbours."""


class _Failed(Exception):
    """A check that fails for another reason than a wrong answer; the text is a name of REASONS, a colon and more."""


def run_tests(
    solution: str, tests: list[str], setup: str = "", cpu_seconds: float = 3.0, *, memory: int = MAX_MEMORY
) -> TestsResult:
    """Runs ``solution``, then ``setup``, then the calls of ``tests``, all in one fresh sandboxed interpreter, and
    judges the values outside of it.

    ``tests`` are asserts of the data set; what is expected never enters the process of the solution. ``cpu_seconds``
    of an idle core are for all of it (:data:`BUSY` as many are given, in whole seconds); ``memory`` is address space
    in bytes. What the solution prints goes nowhere. A test that cannot be split does not pass, and its reason says why
    (:func:`split_tests` raises for it). Thread-safe. Raises :class:`SandboxTooWeak` and :class:`SandboxError`;
    whatever the solution does is a verdict.
    """
    layers = isolation()
    plan = plan_tests(tuple(tests), setup)
    job: dict[str, object] = {"mode": "tests", "source": solution, "setup": setup, "tests": plan.steps}
    ended = run(layers, job, cpu_seconds, busy=BUSY, memory=memory)
    values = _Values(ended)
    verdicts: list[list[str]] = []
    to_judge: list[tuple[int, int, Check]] = []
    for at, (checks, problem) in enumerate(zip(plan.checks, plan.problems, strict=True)):
        verdicts.append([f"unsupported_test: {problem}"] if problem else [])
        for check in checks:
            try:
                if check.relation == "judge":
                    to_judge.append((at, len(verdicts[at]), check))
                    verdicts[at].append("no_result: not judged")
                else:
                    verdicts[at].append("ok" if holds(check, values.plain(check.wanted[0])) else "wrong_answer")
            except _Failed as failure:
                verdicts[at].append(str(failure))
    for (at, position, _), verdict in zip(to_judge, _judge(layers, [c for _, _, c in to_judge], values), strict=True):
        verdicts[at][position] = verdict
    reasons = [next((verdict for verdict in own if verdict != "ok"), "ok") for own in verdicts]
    first = next((reason for reason in reasons if reason != "ok"), "ok" if reasons else "no_tests")
    return TestsResult(
        passed=[reason == "ok" for reason in reasons],
        reason=first.partition(":")[0],
        reasons=reasons,
        isolation=layers.level,
        denials=denials(ended),
        seconds=ended.wall_seconds,
    )


class _Values:
    """What the program's process claims its expressions are worth."""

    def __init__(self, ended: Ended) -> None:
        self.problem = _problem(ended)
        self._decoder = Decoder()
        self._claimed: dict[int, tuple[bytes, bytes]] = {}
        for letter, index, content in ended.records:
            if letter in (b"V", b"X"):
                self._claimed.setdefault(index, (letter, content))

    def of(self, index: int) -> Any:
        """The value with this index; raises :class:`_Failed` with the reason why there is none."""
        letter, content = self._claimed.get(index, (b"", b""))
        if self.problem.startswith("forged_results") or not letter:
            raise _Failed(self.problem or "no_result: nothing was reported")
        if letter == b"X":
            raise _Failed(_claimed_failure(content))
        try:
            return self._decoder.decode(content)
        except BadValue as error:
            raise _Failed(f"unsupported_value: {error}") from None

    def plain(self, index: int) -> Any:
        """The same, for a comparison in this process."""
        value = self.of(index)
        if isinstance(value, Lazy) and value.kind == "view":
            try:
                return self._decoder.as_set(value)
            except BadValue as error:
                raise _Failed(f"unsupported_value: {error}") from None
        if isinstance(value, Lazy):
            raise _Failed(f"unsupported_value: a {value.kind}")
        return value


def _problem(ended: Ended) -> str:
    """Why a value may be missing, as a reason and more; "" when nothing is known to be wrong."""
    if ended.forged:
        return "forged_results: something else wrote to the result channel"
    if ended.over_limit:
        return "output_limit: more results than are read"
    if ended.over_time:
        return f"timeout: after {ended.cpu_seconds:.1f} s of CPU and {ended.wall_seconds:.1f} s"
    loaded = ended.first(b"P")
    if loaded is not None and not loaded.startswith(b"ok\t"):
        return _claimed_failure(loaded)
    if ended.first(b"D") is None:
        if ended.exit_code > 128:
            return f"killed: by signal {ended.exit_code - 128}"
        return f"exit: the process ended with code {ended.exit_code} before its results"
    return ""


def _claimed_failure(content: bytes) -> str:
    """A failure as the child reports it; what is not one of the known reasons is an exception."""
    kind, _, text = content.decode("utf-8", "replace").partition("\t")
    return f"{kind if kind in REASONS and kind != 'ok' else 'exception'}: {text}"


def _judge(layers: Isolation, checks: list[Check], values: _Values) -> list[str]:
    """Verdicts of checks that need more than a comparison with a literal: evaluated in a fresh sandboxed interpreter
    that runs text of the data set only, so that neither takes this process's time."""
    expressions = []
    problems: dict[int, str] = {}
    for at, check in enumerate(checks):
        given = {}
        for index in check.wanted:
            try:
                given[PLACEHOLDER.format(index)] = for_judge(values.of(index))
            except _Failed as failure:
                problems.setdefault(at, str(failure))
            except BadValue as error:
                problems.setdefault(at, f"unsupported_value: {error}")
        expressions.append((check.code, check.imports, given))
    if len(problems) == len(checks):
        return [problems[at] for at in range(len(checks))]
    ended = run(layers, {"mode": "judge", "expressions": expressions}, JUDGE_CPU_SECONDS)
    truths = _Values(ended)
    verdicts = []
    for at in range(len(checks)):
        try:
            verdict = "ok" if truths.plain(at) is True else "wrong_answer"
        except _Failed as failure:
            verdict = f"test_failed: the comparison itself: {failure}"
        verdicts.append(problems.get(at, verdict) if verdict != "ok" else verdict)
    return verdicts
